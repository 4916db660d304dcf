// The kernels in AVX2, where the compiler was told to use it. An empty file otherwise.
#include <cstring>
#include <limits>
#include <type_traits>

#include "reduce_kernels.h"

namespace plough {

#if defined(__AVX2__)
namespace {
#include "reduce_kernels.inl"
}  // namespace
const Kernels kernels_avx2 = run_kernel;
#else
const Kernels kernels_avx2 = nullptr;
#endif

}  // namespace plough
