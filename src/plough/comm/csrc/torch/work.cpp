#include "work.h"

#include <ATen/core/grad_mode.h>
#include <ATen/core/ivalue.h>
#include <ATen/core/jit_type.h>
#include <c10/util/Exception.h>

#include "engine.h"
#include "other_hosts.h"

namespace plough {
namespace {

// What gloo says of its timeouts differs with the version; that so much time has passed says it all.
constexpr auto kEarly = std::chrono::milliseconds(20);

// Whether the call never began, because the group had failed before.
bool was_broken(const std::exception_ptr& error) {
  try {
    std::rethrow_exception(error);
  } catch (const Broken&) {
    return true;
  } catch (...) {
    return false;
  }
}

c10::intrusive_ptr<c10::ivalue::Future> make_future() {
  return c10::make_intrusive<c10::ivalue::Future>(c10::ListType::create(c10::TensorType::get()));
}

}  // namespace

CclWork::CclWork(std::shared_ptr<Engine> engine, int rank, c10d::OpType type, const char* title, uint64_t seq,
                 const std::vector<at::Tensor>& inputs, const std::vector<at::Tensor>& outputs, bool async)
    : Work(rank, type, title, inputs),
      is_mail(type == c10d::OpType::SEND || type == c10d::OpType::RECV || type == c10d::OpType::RECVANYSOURCE),
      engine_(std::move(engine)),
      seq_(seq),
      outputs_(outputs) {
  if (async) future_ = make_future();
}

bool CclWork::done() {
  std::lock_guard<std::mutex> lock(mutex_);
  return completed_;
}

bool CclWork::wait_done(std::chrono::milliseconds longest) {
  std::unique_lock<std::mutex> lock(mutex_);
  return cv_.wait_for(lock, longest, [this] { return completed_; });
}

void CclWork::complete(std::exception_ptr error) {
  const auto exception = error ? as_torch_error(error) : nullptr;
  if (error && !was_broken(error)) {
    // A peer may still be reading or, having been stopped half-way, about to write what it knows of our
    // buffers. The group is lost; its buffers stay where they are until the process ends, and so do the
    // stand-ins for strided tensors, which the functions hold.
    struct Remains {
      std::vector<at::Tensor> tensors, outputs;
      std::function<void()> run, after;
    };
    static auto* const graveyard = new std::vector<Remains>;
    static std::mutex guard;
    std::lock_guard<std::mutex> lock(guard);
    graveyard->push_back({std::move(kept), outputs_, std::move(run), std::move(after)});
  } else if (!error && after) {
    at::NoGradGuard no_grad;
    after();
  }
  run = nullptr, after = nullptr;
  kept.clear();
  c10::intrusive_ptr<c10::ivalue::Future> future;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    future = future_;
  }
  finish(exception);
  if (!future) return;
  if (exception) {
    future->setError(exception);
  } else {
    future->markCompleted(c10::IValue(outputs_));
  }
}

bool CclWork::wait(std::chrono::milliseconds timeout) {
  if (!engine_->bring_about(*this, timeout)) {
    C10_THROW_ERROR(DistBackendError, c10::str("work did not finish within the ", timeout.count(),
                                               " ms that wait() was given; it goes on"));
  }
  std::unique_lock<std::mutex> lock(mutex_);
  if (exception_) std::rethrow_exception(exception_);
  return true;
}

c10::intrusive_ptr<c10::ivalue::Future> CclWork::getFuture() {
  std::lock_guard<std::mutex> lock(mutex_);
  if (future_) return future_;
  // It was waited for when it was made, so it is done.
  future_ = make_future();
  if (exception_) {
    future_->setError(exception_);
  } else {
    future_->markCompleted(c10::IValue(outputs_));
  }
  return future_;
}

void CclWork::abort() { engine_->shut_down("aborted"); }

bool ManyWorks::wait(std::chrono::milliseconds timeout) {
  for (auto& work : works_) work->wait(timeout);
  return true;
}

bool ManyWorks::isCompleted() {
  for (auto& work : works_)
    if (!work->isCompleted()) return false;
  return true;
}

bool ManyWorks::isSuccess() const {
  for (const auto& work : works_)
    if (!work->isSuccess()) return false;
  return true;
}

std::vector<at::Tensor> ManyWorks::result() {
  std::vector<at::Tensor> all;
  for (auto& work : works_)
    for (auto& tensor : work->result()) all.push_back(tensor);
  return all;
}

c10::intrusive_ptr<c10::ivalue::Future> ManyWorks::getFuture() {
  c10::List<c10::intrusive_ptr<c10::ivalue::Future>> futures(
      c10::FutureType::create(c10::ListType::create(c10::TensorType::get())));
  for (auto& work : works_) futures.push_back(work->getFuture());
  auto all = c10::collectAll(futures);
  auto results = result();
  return all->then([results](c10::ivalue::Future&) { return c10::IValue(results); },
                   c10::ListType::create(c10::TensorType::get()));
}

void ForeignWork::start(const std::function<c10::intrusive_ptr<c10d::Work>(c10d::Backend&)>& call) {
  const auto limit = Clock::now() + timeout_ - kEarly;
  // The first message to a rank may have to wait for a connection.
  engine_->collectives().group().linking(true);
  try {
    if (const auto gloo = others_->messages()) inner_ = call(*gloo);
  } catch (const std::exception& error) {
    fail(Clock::now() >= limit, error.what());
  }
  if (!inner_) fail(false, "the group failed");
  engine_->collectives().group().linking(false);
}

bool ForeignWork::wait(std::chrono::milliseconds timeout) {
  Group& group = engine_->collectives().group();
  if (finished_) return true;
  if (!inner_ || group.failed()) fail(false, "the group failed");
  if (timeout.count() <= 0) timeout = timeout_;
  const auto limit = Clock::now() + timeout - kEarly;
  group.linking(true);
  try {
    inner_->wait(timeout);
  } catch (const std::exception& error) {
    fail(Clock::now() >= limit, error.what());
  }
  group.linking(false);
  if (then) then();
  then = nullptr;
  finished_ = true;
  return true;
}

void ForeignWork::fail(bool late, const std::string& why) {
  inner_.reset();
  Group& group = engine_->collectives().group();
  std::exception_ptr error;
  try {
    group.check_usable();
    const std::string trouble = group.trouble_here();
    if (late) {
      char after[40];
      std::snprintf(after, sizeof(after), " timed out after %g s", static_cast<double>(timeout_.count()) / 1000.0);
      group.fail(Failure::timed_out, others_->explain_wait(title_ + after + trouble, peer_));
    }
    group.fail(Failure::peer_lost, others_->explain("lost the connection to " + others_->name(peer_) + ": " +
                                                    why.substr(0, why.find('\n')) + "; " + title_ +
                                                    " cannot be finished" + trouble));
  } catch (...) {
    error = std::current_exception();
  }
  group.linking(false);
  engine_->failed(error);
  std::rethrow_exception(as_torch_error(error));
}

}  // namespace plough
