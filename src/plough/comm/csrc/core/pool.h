// The helper threads of a rank: CCL_WORKER_COUNT - 1 of them, asleep until a large message is to be moved.
#pragma once

#include <pthread.h>
#include <sched.h>

#include <atomic>
#include <condition_variable>
#include <exception>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

namespace plough {

// Bind the calling thread to one core; nothing happens when that core is not ours to use.
inline void bind_thread(int cpu) {
  if (cpu < 0) return;
  cpu_set_t set;
  CPU_ZERO(&set);
  CPU_SET(cpu, &set);
  pthread_setaffinity_np(pthread_self(), sizeof(set), &set);
}

class Pool {
 public:
  // cpus: where helper i is bound, may be shorter than `helpers`.
  Pool(int helpers, std::vector<int> cpus) : cpus_(std::move(cpus)) {
    for (int i = 0; i < helpers; i++) threads_.emplace_back([this, i] { serve(i); });
  }

  ~Pool() {
    {
      std::lock_guard<std::mutex> lock(mutex_);
      ending_ = true;
    }
    wake_.notify_all();
    for (auto& thread : threads_) thread.join();
  }

  // task(i) for every i below `count`, spread over the helpers and the caller. Throws what a task threw.
  void run(size_t count, const std::function<void(size_t)>& task) {
    if (threads_.empty() || count < 2) {
      for (size_t i = 0; i < count; i++) task(i);
      return;
    }
    {
      std::lock_guard<std::mutex> lock(mutex_);
      task_ = &task, count_ = count, next_ = 0, error_ = nullptr;
      busy_ = static_cast<int>(threads_.size());
      round_++;
    }
    wake_.notify_all();
    work(task, count);
    std::unique_lock<std::mutex> lock(mutex_);
    done_.wait(lock, [this] { return busy_ == 0; });
    if (error_) std::rethrow_exception(error_);
  }

 private:
  void serve(int helper) {
    if (static_cast<size_t>(helper) < cpus_.size()) bind_thread(cpus_[helper]);
    unsigned seen = 0;
    std::unique_lock<std::mutex> lock(mutex_);
    while (true) {
      wake_.wait(lock, [&] { return ending_ || round_ != seen; });
      if (ending_) return;
      seen = round_;
      const auto* task = task_;
      const size_t count = count_;
      lock.unlock();
      work(*task, count);
      lock.lock();
      if (--busy_ == 0) done_.notify_one();
    }
  }

  void work(const std::function<void(size_t)>& task, size_t count) {
    try {
      for (size_t i = next_++; i < count; i = next_++) task(i);
    } catch (...) {
      next_ = count;  // the others need not begin what is lost
      std::lock_guard<std::mutex> lock(mutex_);
      if (!error_) error_ = std::current_exception();
    }
  }

  std::vector<int> cpus_;
  std::vector<std::thread> threads_;
  std::mutex mutex_;
  std::condition_variable wake_, done_;
  const std::function<void(size_t)>* task_ = nullptr;
  size_t count_ = 0;
  std::atomic<size_t> next_{0};
  int busy_ = 0;
  unsigned round_ = 0;
  bool ending_ = false;
  std::exception_ptr error_;
};

}  // namespace plough
