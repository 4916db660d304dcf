// What lies between hosts: one leader per host, and bytes that move between all of them at once.
//
// The only thing the collectives need of a network. Everything that reduces does so in our own kernels,
// so a link never has to know a data type.
#pragma once

#include <string>
#include <vector>

#include "types.h"

namespace plough {

class Link {
 public:
  virtual ~Link() = default;

  // Send sends[h] to host h and fill recvs[h] from host h, for all hosts at once; both vectors have an
  // entry per host, ours is ignored, empty spans move nothing. Sizes agree on both sides. Collective over
  // the leaders, called by one thread at a time. `what` says which collective this is for: a link that can
  // send it along at no cost does, and throws Mismatch when another host says something else. Throws
  // TimedOut past the deadline, PeerLost when the connection breaks.
  virtual void exchange(const std::string& what, const std::vector<ConstSpan>& sends,
                        const std::vector<Span>& recvs, Deadline deadline) = 0;

  // After a failure, when no exchange is under way and none will follow: let the others notice, if that can
  // be done without them.
  virtual void abandon() {}

  virtual const char* name() const = 0;
};

}  // namespace plough
