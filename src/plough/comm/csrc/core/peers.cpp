#include "peers.h"

#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>

#include "errors.h"

namespace plough {
namespace {

struct ProcessFacts {
  char state = 0;  // 0: no such process
  int parent = 0;
  unsigned long long born = 0;
};

// /proc/PID/stat: "pid (name) state ppid ... starttime ...", and the name may hold anything.
ProcessFacts facts_of(int pid) {
  ProcessFacts facts;
  char path[64], text[1024];
  std::snprintf(path, sizeof(path), "/proc/%d/stat", pid);
  FILE* file = std::fopen(path, "re");
  if (file == nullptr) return facts;
  const size_t length = std::fread(text, 1, sizeof(text) - 1, file);
  std::fclose(file);
  text[length] = 0;
  const char* after_name = std::strrchr(text, ')');
  if (after_name == nullptr) return facts;
  std::sscanf(after_name + 1,
              " %c %d %*d %*d %*d %*d %*u %*u %*u %*u %*u %*u %*u %*d %*d %*d %*d %*d %*d %llu", &facts.state,
              &facts.parent, &facts.born);
  return facts;
}

std::string lost(int pid, const char* verb) {
  return std::string("cannot ") + verb + " the memory of process " + std::to_string(pid) + ": " + std::strerror(errno);
}

template <typename Call>
void transfer(Call call, int pid, const char* verb, char* local, uint64_t remote, size_t bytes) {
  while (bytes > 0) {
    iovec here{local, bytes};
    iovec there{reinterpret_cast<void*>(remote), bytes};
    const ssize_t moved = call(pid, &here, 1UL, &there, 1UL, 0UL);
    if (moved < 0 && errno == EINTR) continue;
    if (moved <= 0) {
      if (moved < 0 && errno == ESRCH) throw PeerLost(lost(pid, verb));
      throw Error(lost(pid, verb));
    }
    local += moved, remote += static_cast<uint64_t>(moved), bytes -= static_cast<size_t>(moved);
  }
}

}  // namespace

Watch::Watch(int pid) : pid_(pid) {
#ifdef SYS_pidfd_open
  handle_ = static_cast<int>(syscall(SYS_pidfd_open, pid, 0U));
#endif
  born_ = facts_of(pid).born;
}

Watch::~Watch() {
  if (handle_ >= 0) close(handle_);
}

Watch::Watch(Watch&& other) noexcept : pid_(other.pid_), handle_(other.handle_), born_(other.born_) {
  other.handle_ = -1;
}

bool Watch::alive() const {
  if (handle_ >= 0) {
    pollfd entry{handle_, POLLIN, 0};
    return poll(&entry, 1, 0) == 0;
  }
  const ProcessFacts facts = facts_of(pid_);
  return facts.state != 0 && facts.state != 'Z' && facts.state != 'X' && facts.born == born_;
}

bool Watch::stopped() const {
  const char state = facts_of(pid_).state;
  return state == 'T' || state == 't';
}

void read_memory(Reach reach, int pid, void* to, uint64_t from, size_t bytes) {
  if (reach == Reach::direct) {
    std::memcpy(to, reinterpret_cast<const void*>(from), bytes);
  } else {
    transfer(process_vm_readv, pid, "read", static_cast<char*>(to), from, bytes);
  }
}

void write_memory(Reach reach, int pid, uint64_t to, const void* from, size_t bytes) {
  if (reach == Reach::direct) {
    std::memcpy(reinterpret_cast<void*>(to), from, bytes);
  } else {
    transfer(process_vm_writev, pid, "write", const_cast<char*>(static_cast<const char*>(from)), to, bytes);
  }
}

bool can_read(int pid, uint64_t address, uint64_t expected) {
  uint64_t value = 0;
  iovec here{&value, sizeof(value)};
  iovec there{reinterpret_cast<void*>(address), sizeof(value)};
  return process_vm_readv(pid, &here, 1, &there, 1, 0) == sizeof(value) && value == expected;
}

void allow_relatives(const std::vector<int>& pids) {
#ifdef PR_SET_PTRACER
  std::vector<int> common;  // ancestors of the first, nearest first, that all others share
  for (size_t i = 0; i < pids.size(); i++) {
    std::vector<int> line;
    for (int pid = pids[i]; pid > 1; pid = facts_of(pid).parent) line.push_back(pid);
    if (i == 0) {
      common = line;
      continue;
    }
    common.erase(std::remove_if(common.begin(), common.end(),
                                [&](int pid) { return std::find(line.begin(), line.end(), pid) == line.end(); }),
                 common.end());
  }
  if (!common.empty()) prctl(PR_SET_PTRACER, static_cast<unsigned long>(common.front()), 0, 0, 0);
#endif
}

}  // namespace plough
