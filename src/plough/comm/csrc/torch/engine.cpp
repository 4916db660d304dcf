#include "engine.h"

#include <c10/util/Exception.h>

namespace plough {
namespace {

// The thread of the backend shares its core with the model's own threads: it must not spin on it.
constexpr auto kMailGrace = std::chrono::microseconds(200);

}  // namespace

std::exception_ptr as_torch_error(std::exception_ptr error) {
  try {
    std::rethrow_exception(error);
  } catch (const Error& own) {
    try {
      C10_THROW_ERROR(DistBackendError, std::string("ccl: ") + own.what());
    } catch (...) {
      return std::current_exception();
    }
  } catch (...) {
    return std::current_exception();
  }
}

Engine::Engine(std::unique_ptr<Collectives> collectives, OnFailure on_failure)
    : collectives_(std::move(collectives)),
      mailbox_(new Mailbox(collectives_->group())),
      on_failure_(std::move(on_failure)) {}

// The backend has shut us down; whoever holds the last work may be one of our own former threads.
Engine::~Engine() = default;

void Engine::submit(const c10::intrusive_ptr<CclWork>& work, bool async) {
  bool late;
  {
    std::lock_guard<std::mutex> lock(queue_mutex_);
    late = ending_;
    if (!late) {
      queue_.push_back(work);
      waiting_ = queue_.size();
      if (!collective_thread_.joinable()) collective_thread_ = std::thread([this] { serve_collectives(); });
    }
  }
  if (late) {
    work->complete(std::make_exception_ptr(Broken("this group was destroyed")));
    return;
  }
  queued_.notify_one();
  if (!async) bring_about(*work, std::chrono::milliseconds(0));
}

void Engine::finish(CclWork& work, std::exception_ptr error) {
  if (error) {
    failed(error);
    // Nobody else is in a collective, and no other will come to the link.
    if (collectives_->group().failed()) collectives_->abandon_link();
  }
  work.complete(error);
}

void Engine::failed(std::exception_ptr error) {
  if (!on_failure_) return;
  try {
    std::rethrow_exception(error);
  } catch (const Broken& cause) {
    on_failure_(cause.what(), false);
  } catch (const std::exception& cause) {
    on_failure_(cause.what(), true);
  }
}

// With running_ held: run what was queued first.
bool Engine::run_next() {
  c10::intrusive_ptr<CclWork> work;
  {
    std::lock_guard<std::mutex> lock(queue_mutex_);
    if (queue_.empty()) return false;
    work = std::move(queue_.front());
    queue_.pop_front();
    if (!ending_) waiting_ = queue_.size();
  }
  std::exception_ptr error;
  {
    at::NoGradGuard no_grad;
    try {
      work->run();
    } catch (...) {
      error = std::current_exception();
    }
  }
  finish(*work, error);
  return true;
}

void Engine::serve_collectives() {
  const auto& cpus = collectives_->group().tuning().worker_cpus;
  if (!cpus.empty()) bind_thread(cpus.back());
  while (true) {
    {
      std::unique_lock<std::mutex> lock(queue_mutex_);
      queued_.wait(lock, [this] { return ending_ || !queue_.empty(); });
      if (ending_) return;
    }
    std::lock_guard<std::mutex> lock(running_);
    run_next();
  }
}

bool Engine::bring_about(CclWork& work, std::chrono::milliseconds timeout) {
  if (work.done()) return true;
  if (work.is_mail) return receive(work, timeout);
  const auto start = Clock::now();
  while (!work.done()) {
    std::unique_lock<std::mutex> lock(running_, std::try_to_lock);
    // A caller with a timeout of its own must not be caught in a collective that has a longer one.
    if (timeout.count() == 0 && lock.owns_lock() && run_next()) continue;
    if (lock.owns_lock()) lock.unlock();
    if (work.wait_done(std::chrono::milliseconds(timeout.count() > 0 ? 1 : 50))) return true;
    if (timeout.count() > 0 && Clock::now() - start > timeout) return work.done();
  }
  return true;
}

bool Engine::receive(CclWork& work, std::chrono::milliseconds timeout) {
  const auto limit = Clock::now() + timeout;
  readers_++;
  bool done = false;
  while (!(done = work.done())) {
    mailbox_->wait_for_ring(collectives_->group().tuning().patience, [&] { return work.done(); });
    if (timeout.count() > 0 && Clock::now() > limit) {
      done = work.done();
      break;
    }
  }
  readers_--;
  // Others' mail must be looked after when we go.
  if (mail_thread_.joinable() && !mailbox_->idle()) mail_waits_.notify_one();
  return done;
}

void Engine::post(std::shared_ptr<Letter> letter, const c10::intrusive_ptr<CclWork>& work) {
  letter->done = [this, work](Letter& finished, std::exception_ptr error) {
    if (finished.from >= 0)
      work->source(collectives_->group().segment().state(finished.from).rank.load(std::memory_order_relaxed));
    if (error) failed(error);
    work->complete(error);
  };
  mailbox_->post(std::move(letter));
  mailbox_->progress();
  if (work->done()) return;
  std::lock_guard<std::mutex> lock(mail_mutex_);
  if (!mail_thread_.joinable()) mail_thread_ = std::thread([this] { serve_mail(); });
  mail_waits_.notify_one();
}

void Engine::serve_mail() {
  const Patience sleepy{std::chrono::microseconds(0), std::chrono::microseconds(0)};
  while (!mail_ending_) {
    {
      std::unique_lock<std::mutex> lock(mail_mutex_);
      mail_waits_.wait_for(lock, std::chrono::milliseconds(100), [this] { return mail_ending_ || !mailbox_->idle(); });
      if (mail_ending_) return;
    }
    if (mailbox_->idle()) continue;
    // Whoever posted is likely to wait for it at once, and is faster.
    std::this_thread::sleep_for(kMailGrace);
    if (readers_ > 0) {
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
      continue;
    }
    mailbox_->wait_for_ring(sleepy, [this] { return mail_ending_.load() || readers_ > 0; });
  }
}

void Engine::shut_down(const char* why) {
  std::deque<c10::intrusive_ptr<CclWork>> left;
  {
    std::lock_guard<std::mutex> lock(queue_mutex_);
    ending_ = true;
    waiting_ = 1;
    left.swap(queue_);
  }
  Group& group = collectives_->group();
  const bool busy = !left.empty() || !mailbox_->idle() || !running_.try_lock();
  if (!busy) running_.unlock();
  if ((why != nullptr || busy) && !group.failed()) {
    try {
      group.fail(Failure::peer_lost, group.who(group.index()) + " has " + (why ? why : "destroyed") + " the group");
    } catch (const Error&) {
      // That is what we wanted the others to know.
    }
  }
  queued_.notify_all();
  mail_ending_ = true;
  mail_waits_.notify_all();
  mailbox_->wake();
  if (collective_thread_.joinable() && collective_thread_.get_id() != std::this_thread::get_id())
    collective_thread_.join();
  if (mail_thread_.joinable() && mail_thread_.get_id() != std::this_thread::get_id()) mail_thread_.join();
  const auto error = std::make_exception_ptr(Broken("this group was destroyed"));
  for (auto& work : left) work->complete(error);
  mailbox_->fail_all(error);
  group.leave();
}

}  // namespace plough
