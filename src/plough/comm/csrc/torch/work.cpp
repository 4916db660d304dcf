#include "work.h"

#include <ATen/core/grad_mode.h>
#include <ATen/core/ivalue.h>
#include <ATen/core/jit_type.h>
#include <c10/util/Exception.h>

#include "engine.h"

namespace plough {
namespace {

c10::intrusive_ptr<c10::ivalue::Future> make_future() {
  return c10::make_intrusive<c10::ivalue::Future>(c10::ListType::create(c10::TensorType::get()));
}

}  // namespace

CclWork::CclWork(std::shared_ptr<Engine> engine, int rank, c10d::OpType type, const char* title, uint64_t seq,
                 const std::vector<at::Tensor>& inputs, std::vector<at::Tensor> outputs, bool async)
    : Work(rank, type, title, inputs),
      is_mail(type == c10d::OpType::SEND || type == c10d::OpType::RECV || type == c10d::OpType::RECVANYSOURCE),
      engine_(std::move(engine)),
      seq_(seq),
      outputs_(std::move(outputs)) {
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
  run = nullptr;
  if (!error && after) {
    at::NoGradGuard no_grad;
    after();
  }
  after = nullptr;
  if (!error) kept.clear();
  // After an error a peer may still be reading or, having been stopped half-way, about to write what it
  // knows of our buffers. The group is lost; its buffers stay where they are until the process ends.
  if (error) {
    static auto* const graveyard = new std::vector<std::vector<at::Tensor>>;
    static std::mutex guard;
    std::lock_guard<std::mutex> lock(guard);
    kept.insert(kept.end(), outputs_.begin(), outputs_.end());
    graveyard->push_back(std::move(kept));
  }
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

bool ForeignWork::wait(std::chrono::milliseconds timeout) {
  try {
    inner_->wait(timeout);
  } catch (const std::exception& error) {
    const std::string text = error.what();
    C10_THROW_ERROR(DistBackendError, c10::str("ccl: ", what_, " failed: ", text.substr(0, text.find('\n'))));
  }
  if (then) then();
  then = nullptr;
  return true;
}

}  // namespace plough
