// The kernels in AVX-512, where the compiler was told to use it. An empty file otherwise.
#include <cstring>
#include <limits>
#include <type_traits>

#include "reduce_kernels.h"

namespace plough {

#if defined(__AVX512F__) && defined(__AVX512BW__) && defined(__AVX512VL__) && defined(__AVX512DQ__)
namespace {
#include "reduce_kernels.inl"
}  // namespace
const Kernels kernels_avx512 = run_kernel;
#else
const Kernels kernels_avx512 = nullptr;
#endif

}  // namespace plough
