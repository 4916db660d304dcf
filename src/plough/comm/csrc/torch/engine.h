// Who runs the collectives of a group: the caller if it waits anyway, else the backend's own thread.
//
// Collectives run one at a time and in the order they were posted. Sends and receives are beside that
// order: they make progress whenever somebody looks, and a thread of their own looks when nobody else does.
#pragma once

#include <ATen/core/grad_mode.h>
#include <c10/util/intrusive_ptr.h>

#include <condition_variable>
#include <deque>
#include <memory>
#include <mutex>
#include <thread>

#include "../core/collectives.h"
#include "../core/mailbox.h"
#include "work.h"

namespace plough {

class Engine : public std::enable_shared_from_this<Engine> {
 public:
  // Called after each call that failed; first: it did not merely find out that the group had failed before.
  using OnFailure = std::function<void(const std::string& what, bool first)>;

  Engine(std::unique_ptr<Collectives> collectives, OnFailure on_failure);
  ~Engine();

  Collectives& collectives() { return *collectives_; }
  Mailbox& mailbox() { return *mailbox_; }

  // Run it here if nothing is before it, and complete `work`; false if something is.
  template <typename Run>
  bool run_now(CclWork& work, const std::vector<at::Tensor>& inputs, const Run& run) {
    std::unique_lock<std::mutex> lock(running_, std::try_to_lock);
    if (!lock.owns_lock() || waiting_ != 0) return false;
    std::exception_ptr error;
    at::NoGradGuard no_grad;
    try {
      run();
    } catch (...) {
      error = std::current_exception();
      work.kept = inputs, work.run = run;
    }
    finish(work, error);
    return true;
  }

  // Queue it; returns when done if not async.
  void submit(const c10::intrusive_ptr<CclWork>& work, bool async);

  // Give a letter to the mailbox; `work` is completed when it is delivered.
  void post(std::shared_ptr<Letter> letter, const c10::intrusive_ptr<CclWork>& work);

  // Bring `work` about: run what is queued before it and itself if no other thread is at it, else wait.
  // Returns false if `timeout` (0: none) passed first.
  bool bring_about(CclWork& work, std::chrono::milliseconds timeout);

  // A call of this group ended so.
  void failed(std::exception_ptr error);

  // Nothing more will come: fail what is queued and end the threads. `why` fails the ranks that still wait.
  void shut_down(const char* why);

 private:
  void serve_collectives();
  void serve_mail();
  bool run_next();
  void finish(CclWork& work, std::exception_ptr error);
  bool receive(CclWork& work, std::chrono::milliseconds timeout);

  std::unique_ptr<Collectives> collectives_;
  std::unique_ptr<Mailbox> mailbox_;
  OnFailure on_failure_;

  std::mutex running_;  // held while a collective runs; taken before queue_mutex_
  std::mutex queue_mutex_;
  std::condition_variable queued_;
  std::deque<c10::intrusive_ptr<CclWork>> queue_;
  std::atomic<size_t> waiting_{0};  // how many are queued, or 1 when the group is going down
  bool ending_ = false;
  std::thread collective_thread_;

  std::mutex mail_mutex_;
  std::condition_variable mail_waits_;
  std::atomic<int> readers_{0};  // threads that look after the mail because they wait for it
  std::atomic<bool> mail_ending_{false};
  std::thread mail_thread_;
};

// The exception as Python shall see it: torch.distributed.DistBackendError, with our words.
std::exception_ptr as_torch_error(std::exception_ptr error);

}  // namespace plough
