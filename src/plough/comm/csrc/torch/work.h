// What a collective gives back: completed by the thread that ran it, or run by the one that waits for it.
#pragma once

#include <torch/csrc/distributed/c10d/Work.hpp>

#include <functional>
#include <memory>

namespace plough {

class Engine;
class OtherHosts;

class CclWork : public c10d::Work {
 public:
  CclWork(std::shared_ptr<Engine> engine, int rank, c10d::OpType type, const char* title, uint64_t seq,
          const std::vector<at::Tensor>& inputs, const std::vector<at::Tensor>& outputs, bool async);

  bool wait(std::chrono::milliseconds timeout) override;
  std::vector<at::Tensor> result() override { return outputs_; }
  c10::intrusive_ptr<c10::ivalue::Future> getFuture() override;
  uint64_t getSequencenumber() const override { return seq_; }
  int sourceRank() const override { return source_; }
  void abort() override;

  // Called once, by whoever ran it.
  void complete(std::exception_ptr error);
  bool done();
  bool wait_done(std::chrono::milliseconds longest);
  const bool is_mail;  // a send or a receive
  void source(int rank) { source_ = rank; }

  std::function<void()> run;    // empty for sends and receives
  std::function<void()> after;  // once a receive has its bytes
  std::vector<at::Tensor> kept; // memory that must live until it is done

 private:
  std::shared_ptr<Engine> engine_;
  const uint64_t seq_;
  std::vector<at::Tensor> outputs_;
  c10::intrusive_ptr<c10::ivalue::Future> future_;
  int source_ = -1;
};

// Several works as one, for coalescing.
class ManyWorks : public c10d::Work {
 public:
  explicit ManyWorks(std::vector<c10::intrusive_ptr<c10d::Work>> works)
      : Work(-1, c10d::OpType::COALESCED), works_(std::move(works)) {}

  bool wait(std::chrono::milliseconds timeout) override;
  bool isCompleted() override;
  bool isSuccess() const override;
  std::vector<at::Tensor> result() override;
  c10::intrusive_ptr<c10::ivalue::Future> getFuture() override;

 private:
  std::vector<c10::intrusive_ptr<c10d::Work>> works_;
};

// A send or receive that another backend carries. If it fails, so has the group.
class ForeignWork : public c10d::Work {
 public:
  // title: for messages; peer: -1 for any.
  ForeignWork(std::shared_ptr<Engine> engine, std::shared_ptr<OtherHosts> others, c10d::OpType type,
              std::string title, int peer, std::chrono::milliseconds timeout)
      : Work(-1, type),
        engine_(std::move(engine)),
        others_(std::move(others)),
        title_(std::move(title)),
        peer_(peer),
        timeout_(timeout) {}

  void start(const std::function<c10::intrusive_ptr<c10d::Work>(c10d::Backend&)>& call);

  bool wait(std::chrono::milliseconds timeout) override;
  bool isCompleted() override { return !inner_ || inner_->isCompleted(); }
  bool isSuccess() const override { return inner_ && inner_->isSuccess(); }
  int sourceRank() const override { return inner_ ? inner_->sourceRank() : -1; }
  std::function<void()> then;  // e.g. copy into a strided tensor

 private:
  [[noreturn]] void fail(bool late, const std::string& why);

  std::shared_ptr<Engine> engine_;
  std::shared_ptr<OtherHosts> others_;
  const std::string title_;
  const int peer_;
  const std::chrono::milliseconds timeout_;
  c10::intrusive_ptr<c10d::Work> inner_;  // null once it has failed
  bool finished_ = false;
};

}  // namespace plough
