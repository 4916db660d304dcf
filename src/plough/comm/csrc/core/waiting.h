// How to wait for a word in shared memory: spin a little, then give way, then sleep.
//
// An idle rank on a shared machine must not burn a core, and a rank whose peer is a microsecond away must
// not pay for a sleep.
#pragma once

#include <linux/futex.h>
#include <sched.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <atomic>
#include <climits>
#include <cstdint>

#include "types.h"

namespace plough {

struct Patience {
  std::chrono::nanoseconds spin;   // busy, a core burns
  std::chrono::nanoseconds yield;  // busy, but others may run; 0: as spin, then straight to sleep
};

inline void relax() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

inline void futex_sleep(std::atomic<uint32_t>& word, uint32_t seen, std::chrono::nanoseconds longest) {
  timespec limit{static_cast<time_t>(longest.count() / 1000000000), static_cast<long>(longest.count() % 1000000000)};
  // Shared futex: the sleeper and the waker are different processes.
  syscall(SYS_futex, reinterpret_cast<uint32_t*>(&word), FUTEX_WAIT, seen, &limit, nullptr, 0);
}

inline void futex_wake(std::atomic<uint32_t>& word) {
  syscall(SYS_futex, reinterpret_cast<uint32_t*>(&word), FUTEX_WAKE, INT_MAX, nullptr, nullptr, 0);
}

// Wait until ready(). `word` is what changes when that may have become true; whoever changes it wakes
// sleepers if `sleepers` is not 0. check() is called every so often and may throw: it is where deadlines,
// dead peers and failed groups are noticed.
template <typename Ready, typename Check>
void wait_until(std::atomic<uint32_t>& word, std::atomic<uint32_t>& sleepers, const Patience& patience,
                Ready ready, Check check) {
  for (int i = 0; i < 64; i++) {
    if (ready()) return;
    relax();
  }
  const auto start = Clock::now();
  auto waited = Clock::now() - start;
  while (waited < patience.spin) {
    for (int i = 0; i < 64; i++) {
      if (ready()) return;
      relax();
    }
    waited = Clock::now() - start;
  }
  for (int i = 1; waited < patience.spin + patience.yield; i++) {
    if (ready()) return;
    sched_yield();
    if (i % 64 == 0) check();
    waited = Clock::now() - start;
  }
  struct Sleeper {
    explicit Sleeper(std::atomic<uint32_t>& count) : count(count) { count.fetch_add(1); }
    ~Sleeper() { count.fetch_sub(1); }
    std::atomic<uint32_t>& count;
  } sleeper(sleepers);
  while (true) {
    const uint32_t seen = word.load();
    if (ready()) return;
    check();
    futex_sleep(word, seen, std::chrono::milliseconds(20));
    if (ready()) return;
  }
}

// After the word was stored: wake those who sleep on it. It must have been stored seq_cst: either a sleeper
// sees the new word, or we see that there is a sleeper.
inline void wake_sleepers(std::atomic<uint32_t>& word, std::atomic<uint32_t>& sleepers) {
  if (sleepers.load() != 0) futex_wake(word);
}

}  // namespace plough
