// Decides what a reduction means and who does it; the work is in reduce_kernels.inl.
#include "reduce.h"

#include <atomic>
#include <cmath>
#include <cstring>
#include <string>

#include "errors.h"
#include "reduce_kernels.h"

namespace plough {
namespace {

struct Isa {
  const char* name;
  Kernels kernels;  // null where the build or the machine has none
};

constexpr int isa_count = 3;

// The widest first.
const Isa* isas() {
#if defined(__x86_64__) || defined(__i386__)
  // These ask the operating system, too, whether it saves the registers.
  __builtin_cpu_init();
  static const bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
  static const bool avx512 = avx2 && __builtin_cpu_supports("avx512f") &&
                             __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl") &&
                             __builtin_cpu_supports("avx512dq");
#else
  static const bool avx2 = false, avx512 = false;
#endif
#if defined(__aarch64__)
  static const char* const baseline = "neon";
#else
  static const char* const baseline = "generic";
#endif
  static const Isa found[isa_count] = {
      {"avx512", avx512 ? kernels_avx512 : nullptr},
      {"avx2", avx2 ? kernels_avx2 : nullptr},
      {baseline, kernels_generic},
  };
  return found;
}

const Isa* widest() {
  const Isa* isa = isas();
  while (!isa->kernels) ++isa;
  return isa;
}

std::atomic<const Isa*>& current() {
  static std::atomic<const Isa*> isa{widest()};
  return isa;
}

bool is_floating(DType dtype) {
  return dtype == DType::f16 || dtype == DType::bf16 || dtype == DType::f32 || dtype == DType::f64;
}

bool is_reducible(DType dtype, RedOp op) {
  switch (op) {
    case RedOp::band:
    case RedOp::bor:
    case RedOp::bxor:
      return !is_floating(dtype);
    case RedOp::avg:
    case RedOp::premul_sum:
      return dtype != DType::boolean;
    default:
      return true;
  }
}

bool is_whole(double divisor) {
  return divisor >= 1 && divisor < 0x1p63 && divisor == std::floor(divisor);
}

// Dividing by a power of two is multiplying by its reciprocal, to the last bit and several times as fast.
double exact_reciprocal(double divisor) {
  int exponent = 0;
  if (!is_whole(divisor) || std::frexp(divisor, &exponent) != 0.5) return 0;
  return 1 / divisor;
}

}  // namespace

void check_reducible(DType dtype, RedOp op) {
  if (is_reducible(dtype, op)) return;
  throw Unsupported(std::string("The operation ") + name_of(op) + " has no meaning for elements of type " +
                    name_of(dtype) + ".");
}

void reduce(DType dtype, RedOp op, void* out, const void* const* srcs, int n, size_t count,
            const double* scales, double divisor) {
  check_reducible(dtype, op);
  if (n < 1) throw Error("A reduction needs at least one source.");
  // Otherwise a divisor that an integer cannot have would end the process.
  if (op == RedOp::avg && !is_floating(dtype) && !is_whole(divisor)) {
    throw Unsupported("An average of integers needs a whole number of at least one to divide by, not " +
                      std::to_string(divisor) + ".");
  }
  if (count == 0) return;

  if ((op == RedOp::avg && divisor == 1) || (op == RedOp::premul_sum && !scales)) op = RedOp::sum;
  const bool scaled = op == RedOp::avg || op == RedOp::premul_sum;
  if (n == 1 && !scaled) {
    if (out != srcs[0]) std::memmove(out, srcs[0], count * size_of(dtype));
    return;
  }
  const Reduction reduction{dtype, op, out, srcs, n, count, scales, divisor, exact_reciprocal(divisor)};
  current().load(std::memory_order_relaxed)->kernels(reduction);
}

std::string reduce_isa() { return current().load()->name; }

void set_reduce_isa(const std::string& name) {
  const Isa* isa = isas();
  for (int i = 0; i < isa_count; ++i) {
    // Whoever asks for the generic one means the plainest there is, whatever it is called here.
    const bool plainest = i == isa_count - 1 && name == "generic";
    if (!isa[i].kernels || (name != isa[i].name && !plainest)) continue;
    current().store(&isa[i]);
    return;
  }
  throw Unsupported("This machine or this build cannot reduce with the instruction set \"" + name + "\".");
}

}  // namespace plough
