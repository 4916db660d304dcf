// Other processes of this host: are they alive, and may we read and write their memory?
#pragma once

#include <string>
#include <vector>

#include "types.h"

namespace plough {

// Watches one process without touching it, and without being fooled by a number that was given out anew.
class Watch {
 public:
  explicit Watch(int pid);
  ~Watch();
  Watch(Watch&& other) noexcept;
  Watch(const Watch&) = delete;
  Watch& operator=(const Watch&) = delete;

  bool alive() const;
  bool stopped() const;  // by a signal or a debugger
  int pid() const { return pid_; }

 private:
  int pid_;
  int handle_ = -1;              // a pidfd, where the kernel has them
  unsigned long long born_ = 0;  // else the start time tells one process from another
};

// How a rank reaches the buffers of another.
enum class Reach {
  slots,   // not at all: through the shared memory
  kernel,  // process_vm_readv and process_vm_writev
  direct,  // same address space: ranks that are threads, in tests
};

// Copy between our memory and that of process `pid`. Throws PeerLost when it is gone, Error otherwise.
void read_memory(Reach reach, int pid, void* to, uint64_t from, size_t bytes);
void write_memory(Reach reach, int pid, uint64_t to, const void* from, size_t bytes);

// Whether the kernel lets us read memory of `pid` at an address known to hold `expected`.
bool can_read(int pid, uint64_t address, uint64_t expected);

// Let the other processes of this job, and nobody else, read our memory where the Yama security module
// forbids it by default: the nearest common ancestor of `pids` and all its descendants. Nothing happens
// when that ancestor is init, or when Yama is not there.
void allow_relatives(const std::vector<int>& pids);

}  // namespace plough
