// The kernels in whatever the compiler may assume: SSE2 on x86-64, NEON on aarch64.
#include <cstring>
#include <limits>
#include <type_traits>

#include "reduce_kernels.h"

namespace plough {
namespace {
#include "reduce_kernels.inl"
}  // namespace

const Kernels kernels_generic = run_kernel;

}  // namespace plough
