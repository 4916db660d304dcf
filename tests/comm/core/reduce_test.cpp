// reduce() against the plain reference, to the bit: every type, operation and instruction set that there is.
#include "reduce.h"

#include <cstdio>
#include <random>
#include <string>
#include <vector>

#include "errors.h"
#include "reduce_reference.h"

using namespace plough;

namespace {

int failures = 0;

void check(bool good, const std::string& what) {
  if (good) return;
  ++failures;
  std::printf("FAILED: %s\n", what.c_str());
}

template <class E, class F>
void check_throws(F f, const std::string& what) {
  try {
    f();
  } catch (const E&) {
    return;
  } catch (const std::exception& error) {
    return check(false, what + ": another error: " + error.what());
  }
  check(false, what + ": no error");
}

const std::vector<DType> dtypes = {DType::u8,   DType::i8,  DType::i16, DType::i32, DType::i64,
                                   DType::u16,  DType::u32, DType::u64, DType::f16, DType::bf16,
                                   DType::f32,  DType::f64, DType::boolean};
const std::vector<RedOp> ops = {RedOp::sum,  RedOp::avg, RedOp::product, RedOp::min,       RedOp::max,
                                RedOp::band, RedOp::bor, RedOp::bxor,    RedOp::premul_sum};

bool has_meaning(DType dtype, RedOp op) {
  if (op == RedOp::band || op == RedOp::bor || op == RedOp::bxor) return !reference::is_floating(dtype);
  if (op == RedOp::avg || op == RedOp::premul_sum) return dtype != DType::boolean;
  return true;
}

std::vector<std::string> available() {
  std::vector<std::string> isas;
  for (const char* isa : {"avx512", "avx2", "neon", "generic"}) {
    try {
      set_reduce_isa(isa);
      isas.push_back(isa);
    } catch (const Unsupported&) {
    }
  }
  return isas;
}

// Elements somewhere in memory, with guards around them.
struct Array {
  static constexpr size_t guard = 64;
  size_t bytes, shift;
  std::vector<unsigned char> memory;

  Array(size_t bytes, size_t shift) : bytes(bytes), shift(shift), memory(bytes + shift + 2 * guard, 0xa5) {}
  unsigned char* data() { return memory.data() + guard + shift; }
  bool guarded() const {
    for (size_t i = 0; i < memory.size(); ++i) {
      const bool inside = i >= guard + shift && i < guard + shift + bytes;
      if (!inside && memory[i] != 0xa5) return false;
    }
    return true;
  }
};

// Any bits, which for floating point means NaNs, infinities and subnormals; or numbers as they usually are.
void fill(unsigned char* data, DType dtype, size_t count, bool any, std::mt19937_64& random) {
  const size_t size = size_of(dtype);
  for (size_t i = 0; i < count; ++i) {
    uint64_t bits = random();
    if (dtype == DType::boolean) {
      bits &= 1;
    } else if (reference::is_floating(dtype) && !any) {
      bits = reference::bits_of(static_cast<double>(static_cast<int64_t>(bits) >> 20) * 0x1p-42, dtype);
    } else if (reference::is_floating(dtype) && i % 16 == 0) {
      const uint64_t infinity = reference::bits_of(INFINITY, dtype);  // or a zero, of either sign
      bits &= infinity ^ reference::bits_of(-INFINITY, dtype);
      bits |= i % 32 == 0 ? infinity : 0;
    }
    std::memcpy(data + i * size, &bits, size);
  }
}

std::string described(const reference::Case& c, size_t n, size_t count) {
  return std::string(name_of(c.dtype)) + " " + name_of(c.op) + " n=" + std::to_string(n) +
         " count=" + std::to_string(count) + " divisor=" + std::to_string(c.divisor);
}

// One case in all ways of lying in memory: apart, at odd addresses, and onto each of the sources.
void check_case(const reference::Case& c, size_t n, size_t count, bool any,
                const std::vector<std::string>& isas) {
  std::mt19937_64 random(n * 1000003 + count * 1009 + static_cast<size_t>(c.dtype) * 31 + any);
  const size_t size = size_of(c.dtype), bytes = count * size;
  std::vector<std::vector<unsigned char>> originals;
  for (size_t k = 0; k < n; ++k) {
    originals.emplace_back(bytes + 1);
    fill(originals[k].data(), c.dtype, count, any, random);
  }
  std::vector<unsigned char> expected(bytes + 1);
  std::vector<uint64_t> sources(n);
  for (size_t i = 0; i < count; ++i) {
    for (size_t k = 0; k < n; ++k) sources[k] = reference::bits_at(originals[k].data(), c.dtype, i);
    const uint64_t bits = reference::reduced(c, sources);
    std::memcpy(expected.data() + i * size, &bits, size);
  }
  for (const std::string& isa : isas) {
    set_reduce_isa(isa);
    for (size_t way = 0; way < 3 + n; ++way) {
      const size_t step = way == 1 ? 2 : way == 2 ? 3 : 0;
      std::vector<Array> arrays;
      std::vector<const void*> srcs;
      arrays.reserve(n);
      for (size_t k = 0; k < n; ++k) {
        arrays.emplace_back(bytes, step * (k + 1));
        std::memcpy(arrays[k].data(), originals[k].data(), bytes);
        srcs.push_back(arrays[k].data());
      }
      Array apart(bytes, step * 7);
      Array& out = way < 3 ? apart : arrays[way - 3];
      reduce(c.dtype, c.op, out.data(), srcs.data(), static_cast<int>(n), count,
             c.scales.empty() ? nullptr : c.scales.data(), c.divisor);
      const std::string what = described(c, n, count) + " " + isa + " way=" + std::to_string(way);
      check(out.guarded(), what + ": wrote outside of the result");
      for (size_t i = 0; i < count; ++i) {
        const uint64_t got = reference::bits_at(out.data(), c.dtype, i);
        const uint64_t wanted = reference::bits_at(expected.data(), c.dtype, i);
        if (got == wanted) continue;
        char numbers[96];
        std::snprintf(numbers, sizeof numbers, ": element %zu is %llx, not %llx", i,
                      static_cast<unsigned long long>(got), static_cast<unsigned long long>(wanted));
        check(false, what + numbers);
        break;
      }
    }
  }
}

void check_all_cases(const std::vector<std::string>& isas) {
  const std::vector<double> scales = {0.5, -0.3, 1.25, 3, 1e-3};
  for (const DType dtype : dtypes) {
    for (const RedOp op : ops) {
      if (!has_meaning(dtype, op)) continue;
      for (const size_t n : {1, 2, 3, 5}) {
        for (const size_t count : {0, 1, 7, 64, 1000, 5001}) {
          for (const bool any : {false, true}) {
            reference::Case c{dtype, op, {}, 1};
            check_case(c, n, count, any, isas);
            if (op == RedOp::premul_sum) {
              c.scales.assign(scales.begin(), scales.begin() + static_cast<long>(n));
              check_case(c, n, count, any, isas);
            }
            for (const double divisor : {2, 3, 300}) {
              if (op != RedOp::avg) continue;
              c.divisor = divisor;
              check_case(c, n, count, any, isas);
            }
          }
        }
      }
    }
  }
}

// Every number of 16 bits through every conversion and a good many roundings.
void check_all_halves() {
  std::vector<uint16_t> all(65536), out(65536);
  for (size_t i = 0; i < all.size(); ++i) all[i] = static_cast<uint16_t>(i);
  const void* const srcs[] = {all.data()};
  for (const DType dtype : {DType::f16, DType::bf16}) {
    for (const double scale : {1.0, 0.5, 0.333, 3e-5, 1.0009, 4.1, 0x1p-13, 0x1.8p-20}) {
      reduce(dtype, RedOp::premul_sum, out.data(), srcs, 1, all.size(), &scale);
      size_t wrong = 0;
      for (size_t i = 0; i < all.size(); ++i) {
        wrong += out[i] != reference::reduced({dtype, RedOp::premul_sum, {scale}, 1}, {all[i]});
      }
      check(wrong == 0, std::string("all of ") + name_of(dtype) + " times " + std::to_string(scale) +
                            " with " + reduce_isa() + ": " + std::to_string(wrong) + " wrong");
    }
  }
}

template <class T>
T of(DType dtype, RedOp op, std::vector<T> values, double divisor = 1, std::vector<double> scales = {}) {
  std::vector<const void*> srcs;
  for (const T& value : values) srcs.push_back(&value);
  T out{};
  reduce(dtype, op, &out, srcs.data(), static_cast<int>(values.size()), 1,
         scales.empty() ? nullptr : scales.data(), divisor);
  return out;
}

// Worked out by hand, so that the reference is not the only witness.
void check_by_hand() {
  const std::string with = " with " + reduce_isa();
  using H = uint16_t;
  const auto half = [](RedOp op, const std::vector<H>& values) { return of<H>(DType::f16, op, values); };
  const auto brain = [](RedOp op, const std::vector<H>& values) { return of<H>(DType::bf16, op, values); };
  check(half(RedOp::sum, {0x3c00, 0x1000}) == 0x3c00, "f16: 1 + 2^-11 is a tie, 1 is even" + with);
  check(half(RedOp::sum, {0x3c01, 0x1000}) == 0x3c02, "f16: a tie above 1 + 2^-10" + with);
  check(half(RedOp::sum, {0x7bff, 0x4c00}) == 0x7c00, "f16: 65504 + 16 is infinite" + with);
  check(half(RedOp::sum, {0x7bff, 0x4bff}) == 0x7bff, "f16: 65504 + 15.99 is 65504" + with);
  check(half(RedOp::sum, {0x0001, 0x0002}) == 0x0003, "f16: subnormals add up" + with);
  check(half(RedOp::sum, {0x03ff, 0x0001}) == 0x0400, "f16: subnormals become a normal number" + with);
  check(half(RedOp::sum, {0x6800, 0x3c00, 0x3c00}) == 0x6801, "f16: 2048 + 1 + 1 is rounded once" + with);
  check(half(RedOp::sum, {0x7c00, 0xfc00}) == 0x7e00, "f16: inf - inf is NaN" + with);
  check(brain(RedOp::sum, {0x3f80, 0x3b80}) == 0x3f80, "bf16: 1 + 2^-8 is a tie, 1 is even" + with);
  check(brain(RedOp::sum, {0x3f81, 0x3b80}) == 0x3f82, "bf16: 1 + 2^-7 + 2^-8 is a tie" + with);
  check(brain(RedOp::sum, {0x7f7f, 0x7f7f}) == 0x7f80, "bf16: overflows to infinity" + with);
  check(brain(RedOp::sum, {0x7f81, 0x3f80}) == 0x7fc0, "bf16: a NaN stays one, whatever its bits" + with);
  check(brain(RedOp::sum, {0xffff, 0x3f80}) == 0x7fc0, "bf16: a NaN with all bits set stays one" + with);
  check(brain(RedOp::sum, {0x0001, 0x0001}) == 0x0002, "bf16: subnormals add up" + with);
  for (const RedOp op : {RedOp::min, RedOp::max}) {
    check(std::isnan(of<float>(DType::f32, op, {1, NAN})), "f32: min and max of NaN last" + with);
    check(std::isnan(of<float>(DType::f32, op, {NAN, 1, 2})), "f32: min and max of NaN first" + with);
  }
  check(of<float>(DType::f32, RedOp::avg, {1, 1}, 3) == 2.0f / 3.0f, "f32: avg divides" + with);
  check(of<float>(DType::f32, RedOp::premul_sum, {1, 2}, 1, {0.5, 4}) == 8.5f, "f32: premul_sum" + with);
  check(of<int8_t>(DType::i8, RedOp::sum, {127, 1}) == -128, "i8: wraps" + with);
  check(of<int8_t>(DType::i8, RedOp::avg, {127, 1}, 2) == -64, "i8: wraps, then divides" + with);
  check(of<int8_t>(DType::i8, RedOp::avg, {-5, 0}, 2) == -2, "i8: divides towards zero" + with);
  check(of<uint8_t>(DType::u8, RedOp::avg, {200, 1}, 300) == 0, "u8: by more than it can hold" + with);
  check(of<int64_t>(DType::i64, RedOp::avg, {-7, 0, 0}, 2) == -3, "i64: divides towards zero" + with);
  check(of<int16_t>(DType::i16, RedOp::product, {-32768, -1}) == -32768, "i16: product wraps" + with);
  check(of<uint16_t>(DType::u16, RedOp::product, {65535, 65535}) == 1, "u16: product wraps" + with);
  check(of<int32_t>(DType::i32, RedOp::premul_sum, {7, -7}, 1, {0.5, 0.5}) == 0, "i32: truncates" + with);
  check(of<int32_t>(DType::i32, RedOp::premul_sum, {7}, 1, {1e300}) == 2147483647, "i32: saturates" + with);
  check(of<uint64_t>(DType::u64, RedOp::premul_sum, {7}, 1, {-1}) == 0, "u64: saturates" + with);
  check(of<int64_t>(DType::i64, RedOp::premul_sum, {7}, 1, {NAN}) == 0, "i64: NaN is zero" + with);
}

void check_errors() {
  const uint64_t value = 0;
  uint64_t out = 0;
  const void* const srcs[] = {&value, &value};
  for (const DType dtype : dtypes) {
    for (const RedOp op : ops) {
      const std::string what = std::string(name_of(dtype)) + " " + name_of(op);
      if (has_meaning(dtype, op)) {
        check_reducible(dtype, op);
        reduce(dtype, op, nullptr, srcs, 2, 0);
        continue;
      }
      check_throws<Unsupported>([&] { check_reducible(dtype, op); }, "check_reducible " + what);
      check_throws<Unsupported>([&] { reduce(dtype, op, &out, srcs, 2, 1); }, "reduce " + what);
    }
  }
  for (const double divisor : {0.0, -1.0, 2.5, double{NAN}, 1e30}) {
    check_throws<Unsupported>([&] { reduce(DType::i32, RedOp::avg, &out, srcs, 2, 1, nullptr, divisor); },
                              "integers by " + std::to_string(divisor));
  }
  check_throws<Error>([&] { reduce(DType::i32, RedOp::sum, &out, srcs, 0, 1); }, "no sources");
  const std::string before = reduce_isa();
  check_throws<Unsupported>([] { set_reduce_isa("abacus"); }, "an instruction set that is none");
  check(reduce_isa() == before, "a refused instruction set changes nothing");
}

void check_names() {
  const char* const types[] = {"uint8",  "int8",   "int16",   "int32",    "int64",   "uint16", "uint32",
                               "uint64", "float16", "bfloat16", "float32", "float64", "bool"};
  for (size_t i = 0; i < dtypes.size(); ++i) check(name_of(dtypes[i]) == std::string(types[i]), types[i]);
  const char* const names[] = {"sum", "avg", "product", "min", "max", "band", "bor", "bxor", "premul_sum"};
  for (size_t i = 0; i < ops.size(); ++i) check(name_of(ops[i]) == std::string(names[i]), names[i]);
}

}  // namespace

int main() {
  const std::string widest = reduce_isa();
  const std::vector<std::string> isas = available();
  check(!isas.empty() && isas[0] == widest, "the widest instruction set is the default");
  check_names();
  check_all_cases(isas);
  for (const std::string& isa : isas) {
    set_reduce_isa(isa);
    check(reduce_isa() == isa || isa == "generic", "in use is what was asked for: " + isa);
    check_all_halves();
    check_by_hand();
  }
  check_errors();
  return failures == 0 ? 0 : 1;
}
