// `ccl`: what torch.distributed calls. Turns tensors into spans and hands them to the engine.
#pragma once

#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include <unistd.h>

#include "engine.h"
#include "other_hosts.h"
#include "tensors.h"

namespace plough {

struct BackendConfig {
  std::vector<Place> places;
  std::string host;                 // our name, for messages
  std::vector<std::string> names;   // of every rank, for messages about other hosts
  std::chrono::milliseconds timeout{0};
  Tuning tuning;
  bool direct = true;               // use the kernel's way between buffers where it is open
};

class CclBackend : public c10d::Backend {
 public:
  // link: between the leaders of hosts; null on one host and for ranks that do not lead. flat: a backend
  // of all ranks that carries sends and receives when there are several hosts.
  CclBackend(c10::intrusive_ptr<c10d::Store> store, int rank, std::shared_ptr<Segment> segment,
             std::unique_ptr<Link> link, c10::intrusive_ptr<c10d::Backend> flat, const BackendConfig& config);
  ~CclBackend() override;

  const std::string getBackendName() const override { return "ccl"; }
  c10::intrusive_ptr<Options> getBackendOptions() override { return options_; }
  bool supportsCoalescing() const override { return true; }
  bool supportsSplitting() const override { return false; }
  void setTimeout(std::chrono::milliseconds timeout) override { options_->timeout = timeout; }
  void setSequenceNumberForGroup() override {}
  uint64_t getSequenceNumberForGroup() override { return seq_; }
  c10d::ErrorType getError() override;

  using Tensors = std::vector<at::Tensor>;
  using Lists = std::vector<std::vector<at::Tensor>>;
  using WorkPtr = c10::intrusive_ptr<c10d::Work>;

  WorkPtr broadcast(Tensors& tensors, const c10d::BroadcastOptions& opts) override;
  WorkPtr allreduce(Tensors& tensors, const c10d::AllreduceOptions& opts) override;
  WorkPtr allreduce_coalesced(Tensors& tensors, const c10d::AllreduceCoalescedOptions& opts) override;
  WorkPtr reduce(Tensors& tensors, const c10d::ReduceOptions& opts) override;
  WorkPtr allgather(Lists& outputs, Tensors& inputs, const c10d::AllgatherOptions& opts) override;
  WorkPtr _allgather_base(at::Tensor& output, at::Tensor& input, const c10d::AllgatherOptions& opts) override;
  WorkPtr allgather_coalesced(Lists& outputs, Tensors& inputs, const c10d::AllgatherOptions& opts) override;
  WorkPtr allgather_into_tensor_coalesced(Tensors& outputs, Tensors& inputs,
                                          const c10d::AllgatherOptions& opts) override;
  WorkPtr gather(Lists& outputs, Tensors& inputs, const c10d::GatherOptions& opts) override;
  WorkPtr scatter(Tensors& outputs, Lists& inputs, const c10d::ScatterOptions& opts) override;
  WorkPtr reduce_scatter(Tensors& outputs, Lists& inputs, const c10d::ReduceScatterOptions& opts) override;
  WorkPtr _reduce_scatter_base(at::Tensor& output, at::Tensor& input,
                               const c10d::ReduceScatterOptions& opts) override;
  WorkPtr reduce_scatter_tensor_coalesced(Tensors& outputs, Tensors& inputs,
                                          const c10d::ReduceScatterOptions& opts) override;
  WorkPtr alltoall_base(at::Tensor& output, at::Tensor& input, std::vector<int64_t>& output_splits,
                        std::vector<int64_t>& input_splits, const c10d::AllToAllOptions& opts) override;
  WorkPtr alltoall(Tensors& outputs, Tensors& inputs, const c10d::AllToAllOptions& opts) override;
  WorkPtr send(Tensors& tensors, int to, int tag) override;
  WorkPtr recv(Tensors& tensors, int from, int tag) override;
  WorkPtr recvAnysource(Tensors& tensors, int tag) override;
  WorkPtr barrier(const c10d::BarrierOptions& opts) override;
  void monitoredBarrier(const c10d::BarrierOptions& opts, bool wait_all_ranks) override;

  void startCoalescing() override;
  WorkPtr endCoalescing() override;
  void abort() override;
  void shutdown() override;

  // What this group turned out to be: {"hosts": "1", "inside": "kernel", "between": "", "isa": "avx512"}.
  std::unordered_map<std::string, std::string> facts();

 private:
  // body(Collectives&, const Turn&) is the collective: run at once if nobody wants to do other things
  // meanwhile, else queued.
  template <typename Body>
  WorkPtr run(c10d::OpType type, const char* title, const Tensors& inputs, const Tensors& outputs, bool async,
              std::chrono::milliseconds timeout, Body body);
  WorkPtr mail(bool sending, c10d::OpType type, const char* title, Tensors& tensors, int peer, int tag);
  WorkPtr keep(WorkPtr work);
  WorkPtr mail_to_other_hosts(bool sending, c10d::OpType type, const Filled& buffer, int peer, int tag);

  std::shared_ptr<OtherHosts> others_;  // null when there are none
  c10::intrusive_ptr<Options> options_;
  std::shared_ptr<Engine> engine_;
  std::atomic<uint64_t> seq_{0}, mail_seq_{0};
  bool coalescing_ = false;
  const int owner_ = getpid();  // the process that formed the group
  std::vector<WorkPtr> coalesced_;
};

}  // namespace plough
