// One collective with given types and sizes: every rank makes its input, calls it, and checks what it got.
#pragma once

#include "harness.h"

namespace plough {

struct Case {
  Op op = Op::barrier;
  DType dtype = DType::f32;
  RedOp redop = RedOp::sum;
  size_t count = 0;  // elements: of the whole for allreduce, reduce and broadcast, of each piece elsewhere
  int root = 0;
  bool in_place = false;
  bool uneven = false;    // pieces of sizes between nothing and twice `count`
  bool together = false;  // pieces lie side by side in one buffer
  uint64_t seed = 0;
};

std::string name_of(const Case& one);

// Collective. Failed checks name the case and the rank.
void perform(Member& member, const Case& one);

// The same on every rank for the same seed. Pieces shrink with the number of ranks.
Case random_case(uint64_t seed, int world, size_t most_bytes);

}  // namespace plough
