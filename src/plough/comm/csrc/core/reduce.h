// Element-wise reductions over any number of sources, with the instruction set chosen at run time.
#pragma once

#include <string>

#include "types.h"

namespace plough {

// out[i] = (scales[0]*srcs[0][i] op scales[1]*srcs[1][i] op ... op scales[n-1]*srcs[n-1][i]) / divisor
//
// In the order of the sources, so that every rank that reduces the same sources gets the same bits.
// float16 and bfloat16 accumulate in float32 and are rounded once. `out` may be one of the sources.
// scales: n factors, or null for none (RedOp::premul_sum only). divisor: for RedOp::avg; integers are
// divided towards zero. Booleans: sum, max and bor are "or"; product, min and band are "and"; bxor is "xor".
// MIN and MAX of floating point numbers are NaN where a source is.
// Throws Unsupported where the operation has no meaning for the type (bitwise on floats, avg on booleans).
void reduce(DType dtype, RedOp op, void* out, const void* const* srcs, int n, size_t count,
            const double* scales = nullptr, double divisor = 1.0);

// Throws Unsupported if reduce() would.
void check_reducible(DType dtype, RedOp op);

// The instruction set in use: "avx512", "avx2", "neon" or "generic".
std::string reduce_isa();

// Force a narrower one; throws Unsupported if the machine or this build lacks it.
void set_reduce_isa(const std::string& isa);

}  // namespace plough
