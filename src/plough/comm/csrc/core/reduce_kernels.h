// What reduce.cpp and the kernels of each instruction set say to each other. Nobody else includes this.
#pragma once

#include "types.h"

namespace plough {

struct Reduction {
  DType dtype;
  RedOp op;  // avg only with a divisor other than one, premul_sum only with scales
  void* out;
  const void* const* srcs;
  int n;
  size_t count;
  const double* scales;
  double divisor;
  double reciprocal;  // of the divisor where it is exact, else zero
};

using Kernels = void (*)(const Reduction&);

// Null where this build has none. One in use has been asked for what it can do and for something to do:
// at least one element and one source.
extern const Kernels kernels_generic;
extern const Kernels kernels_avx2;
extern const Kernels kernels_avx512;

}  // namespace plough
