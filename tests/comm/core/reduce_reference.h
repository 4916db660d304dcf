// What reduce() must give, one element at a time and as plainly as can be. Shares no code with it.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>
#include <vector>

#include "types.h"

namespace reference {

using plough::DType;
using plough::RedOp;
using Whole = __int128;  // holds every integer that may come up, but for products
using Unsigned = unsigned __int128;

inline bool is_floating(DType t) {
  return t == DType::f16 || t == DType::bf16 || t == DType::f32 || t == DType::f64;
}
inline bool is_signed(DType t) {
  return t == DType::i8 || t == DType::i16 || t == DType::i32 || t == DType::i64;
}

inline uint64_t bits_at(const void* base, DType t, size_t index) {
  uint64_t bits = 0;  // little-endian, as all machines that run this
  std::memcpy(&bits, plough::at(base, index * plough::size_of(t)), plough::size_of(t));
  return bits;
}

template <class To, class From>
To cast(From from) {
  To to;
  std::memcpy(&to, &from, sizeof(To));
  return to;
}

// Floating point: `fraction` bits, and exponents from `least` to `most`.
struct Format {
  int fraction, least, most;
};
constexpr Format half{10, -14, 15}, brain{7, -126, 127};

inline double decoded(uint64_t bits, Format f) {
  const double sign = bits >> 15 & 1 ? -1 : 1;
  const int exponent = static_cast<int>(bits >> f.fraction & ((1u << (15 - f.fraction)) - 1));
  const double fraction = std::ldexp(static_cast<double>(bits & ((1u << f.fraction) - 1)), -f.fraction);
  if (exponent == 0) return sign * std::ldexp(fraction, f.least);
  if (exponent == f.most - f.least + 2) return fraction != 0 ? NAN : sign * INFINITY;
  return sign * std::ldexp(1 + fraction, exponent + f.least - 1);
}

inline uint64_t encoded(double value, Format f) {
  const uint64_t top = static_cast<uint64_t>(f.most - f.least + 2) << f.fraction;  // infinity
  if (std::isnan(value)) return top | 1ull << (f.fraction - 1);
  const uint64_t sign = std::signbit(value) ? 0x8000 : 0;
  if (value == 0) return sign;
  if (std::isinf(value)) return sign | top;
  int exponent = std::ilogb(value);
  if (exponent < f.least) exponent = f.least;
  // In units of the last place; nearbyint rounds to nearest even.
  const double units = std::nearbyint(std::ldexp(std::fabs(value), f.fraction - exponent));
  // A carry out of the fraction, or the leading one, is one more in the exponent, as it should be.
  const uint64_t whole = static_cast<uint64_t>(exponent - f.least);
  const uint64_t bits = (whole << f.fraction) + static_cast<uint64_t>(units);
  return sign | (bits > top ? top : bits);
}

inline double value_of(uint64_t bits, DType t) {
  if (t == DType::f16) return decoded(bits, half);
  if (t == DType::bf16) return decoded(bits, brain);
  if (t == DType::f32) return cast<float>(static_cast<uint32_t>(bits));
  return cast<double>(bits);
}

inline uint64_t bits_of(double value, DType t) {
  if (t == DType::f16) return encoded(value, half);
  if (t == DType::bf16) return encoded(value, brain);
  if (t == DType::f32) return std::isnan(value) ? 0x7fc00000u : cast<uint32_t>(static_cast<float>(value));
  return std::isnan(value) ? 0x7ff8000000000000u : cast<uint64_t>(value);
}

struct Case {
  DType dtype;
  RedOp op;
  std::vector<double> scales;  // empty for none
  double divisor;
};

template <class A>
uint64_t floating(const Case& c, const std::vector<uint64_t>& sources) {
  A acc = 0;
  for (size_t k = 0; k < sources.size(); ++k) {
    A value = static_cast<A>(value_of(sources[k], c.dtype));
    if (!c.scales.empty()) value = value * static_cast<A>(c.scales[k]);
    if (k == 0) {
      acc = value;
    } else if (c.op == RedOp::product) {
      acc = acc * value;
    } else if (c.op == RedOp::min || c.op == RedOp::max) {
      const bool better = c.op == RedOp::min ? value < acc : value > acc;
      if (std::isnan(value) || better) acc = value;
    } else {
      acc = acc + value;
    }
  }
  if (c.op == RedOp::avg) acc = acc / static_cast<A>(c.divisor);
  return bits_of(static_cast<double>(acc), c.dtype);
}

inline Whole wrapped(Whole value, DType t) {
  const int width = static_cast<int>(plough::size_of(t)) * 8;
  const Whole range = static_cast<Whole>(1) << width;
  value = (value % range + range) % range;
  return is_signed(t) && value >= range / 2 ? value - range : value;
}

inline Whole scaled(Whole value, double by, DType t) {
  const int width = static_cast<int>(plough::size_of(t)) * 8 - is_signed(t);
  const Whole most = (static_cast<Whole>(1) << width) - 1, least = is_signed(t) ? -most - 1 : 0;
  const double product = static_cast<double>(value) * by;
  if (std::isnan(product)) return 0;
  if (product >= static_cast<double>(most)) return most;
  if (product <= static_cast<double>(least)) return least;
  return static_cast<Whole>(product);
}

inline uint64_t integer(const Case& c, const std::vector<uint64_t>& sources) {
  Whole acc = 0;
  for (size_t k = 0; k < sources.size(); ++k) {
    Whole value = wrapped(static_cast<Whole>(sources[k]), c.dtype);
    if (!c.scales.empty()) value = scaled(value, c.scales[k], c.dtype);
    if (k == 0) {
      acc = value;
      continue;
    }
    switch (c.op) {
      case RedOp::product:
        acc = static_cast<Whole>(static_cast<Unsigned>(acc) * static_cast<Unsigned>(value));  // may wrap
        break;
      case RedOp::min:
        acc = value < acc ? value : acc;
        break;
      case RedOp::max:
        acc = value > acc ? value : acc;
        break;
      case RedOp::band:
        acc = acc & value;
        break;
      case RedOp::bor:
        acc = acc | value;
        break;
      case RedOp::bxor:
        acc = acc ^ value;
        break;
      default:
        acc = acc + value;
    }
    acc = wrapped(acc, c.dtype);
  }
  if (c.op == RedOp::avg) acc = acc / static_cast<Whole>(c.divisor);
  const uint64_t bits = static_cast<uint64_t>(acc);
  const size_t size = plough::size_of(c.dtype);
  return size == 8 ? bits : bits & ((1ull << (8 * size)) - 1);
}

inline uint64_t boolean(const Case& c, const std::vector<uint64_t>& sources) {
  size_t set = 0;
  for (const uint64_t source : sources) set += source != 0;
  if (c.op == RedOp::bxor) return set % 2;
  if (c.op == RedOp::product || c.op == RedOp::min || c.op == RedOp::band) return set == sources.size();
  return set > 0;
}

// The bits of one element, from those of the sources.
inline uint64_t reduced(const Case& c, const std::vector<uint64_t>& sources) {
  const bool untouched = c.scales.empty() && (c.op != RedOp::avg || c.divisor == 1);
  if (sources.size() == 1 && untouched) return sources[0];
  if (c.dtype == DType::boolean) return boolean(c, sources);
  if (c.dtype == DType::f64) return floating<double>(c, sources);
  if (is_floating(c.dtype)) return floating<float>(c, sources);
  return integer(c, sources);
}

}  // namespace reference
