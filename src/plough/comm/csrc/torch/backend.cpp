#include "gil.h"  // Python.h wants to be first

#include "backend.h"

#include <ATen/record_function.h>

#include "../core/reduce.h"

namespace plough {
namespace {

using Tensors = CclBackend::Tensors;

void check_all(const Tensors& tensors, const char* op) {
  for (const auto& tensor : tensors) check_tensor(tensor, op);
}

const at::Tensor& only(const Tensors& tensors, const char* op) {
  TORCH_CHECK_VALUE(tensors.size() == 1, op, ": one tensor is expected, not ", tensors.size());
  check_tensor(tensors[0], op);
  return tensors[0];
}

void check_root(int64_t root, int size, const char* op) {
  TORCH_CHECK_VALUE(root >= 0 && root < size, op, ": there is no rank ", root, " in a group of ", size);
}

void same_type(const at::Tensor& a, const at::Tensor& b, const char* op) {
  TORCH_CHECK_VALUE(a.scalar_type() == b.scalar_type(), op, ": types differ: ", a.scalar_type(), " and ", b.scalar_type());
}

std::vector<Filled> filled(const Tensors& tensors, bool read) {
  std::vector<Filled> result;
  result.reserve(tensors.size());
  for (const auto& tensor : tensors) result.emplace_back(tensor, read);
  return result;
}

Tensors dense(const Tensors& tensors) {
  Tensors result;
  result.reserve(tensors.size());
  for (const auto& tensor : tensors) result.push_back(tensor.contiguous());
  return result;
}

std::vector<Span> write_spans(const std::vector<Filled>& tensors) {
  std::vector<Span> spans;
  spans.reserve(tensors.size());
  for (const auto& tensor : tensors) spans.push_back(tensor.span());
  return spans;
}

std::vector<ConstSpan> read_spans(const Tensors& tensors) {
  std::vector<ConstSpan> spans;
  spans.reserve(tensors.size());
  for (const auto& tensor : tensors) spans.push_back(read_span(tensor));
  return spans;
}

void give_back(const std::vector<Filled>& tensors) {
  for (const auto& tensor : tensors) tensor.give_back();
}

// One tensor as the pieces of all ranks.
template <typename S>
std::vector<S> equal_parts(S whole, int size) {
  std::vector<S> parts(size);
  for (int i = 0; i < size; i++) parts[i] = {at(whole.data, whole.bytes / size * i), whole.bytes / size};
  return parts;
}

// One tensor cut along its first dimension; no splits: in equal parts.
template <typename S>
std::vector<S> split_parts(S whole, const at::Tensor& tensor, const std::vector<int64_t>& splits, int size,
                           const char* op) {
  if (splits.empty()) {
    TORCH_CHECK_VALUE(tensor.numel() == 0 || tensor.size(0) % size == 0, op, ": the first dimension, ",
                      tensor.dim() > 0 ? tensor.size(0) : 0, ", does not divide by the ", size, " ranks");
    return equal_parts(whole, size);
  }
  TORCH_CHECK_VALUE(static_cast<int>(splits.size()) == size, op, ": ", splits.size(), " split sizes for ", size, " ranks");
  int64_t rows = 0;
  for (const auto split : splits) {
    TORCH_CHECK_VALUE(split >= 0, op, ": negative split size ", split);
    rows += split;
  }
  TORCH_CHECK_VALUE(tensor.dim() > 0 && rows == tensor.size(0), op, ": split sizes add up to ", rows,
                    ", not to the first dimension, ", tensor.dim() > 0 ? tensor.size(0) : 0);
  const size_t row = rows > 0 ? whole.bytes / rows : 0;
  std::vector<S> parts;
  size_t begin = 0;
  for (const auto split : splits) {
    parts.push_back({at(whole.data, begin), row * split});
    begin += row * split;
  }
  return parts;
}

size_t reduced_count(const at::Tensor& tensor) { return tensor.numel() * (tensor.is_complex() ? 2 : 1); }

}  // namespace

CclBackend::CclBackend(c10::intrusive_ptr<c10d::Store> store, int rank, std::shared_ptr<Segment> segment,
                       std::unique_ptr<Link> link, c10::intrusive_ptr<c10d::Backend> flat,
                       const BackendConfig& config)
    : Backend(rank, static_cast<int>(config.places.size())),
      options_(c10::make_intrusive<Options>("ccl", config.timeout)) {
  std::unique_ptr<Group> group(
      new Group(std::move(segment), config.places[rank].index, rank, config.host, Reach::slots, config.tuning));
  std::vector<std::string> here;
  for (size_t r = 0; r < config.places.size(); r++)
    if (config.places[r].host == config.places[rank].host) here.push_back(config.names[r]);
  group->meet(Clock::now() + config.timeout, here);
  if (group->can_reach_all(config.direct)) group->set_reach(Reach::kernel);
  group->segment().close_fd();
  std::unique_ptr<Collectives> collectives(
      new Collectives(std::move(group), std::move(link), config.places, rank));
  Engine::OnFailure on_failure;
  if (collectives->hosts() > 1) {
    others_ = std::make_shared<OtherHosts>(std::move(store), std::move(flat), config.names, rank);
    collectives->on_link_failure([others = others_](const std::string& what) { return others->explain(what); });
    on_failure = [others = others_](const std::string& what, bool first) {
      if (first) others->tell(what);
      others->abandon();
    };
  }
  engine_ = std::make_shared<Engine>(std::move(collectives), std::move(on_failure));
  init();
}

CclBackend::~CclBackend() {
  if (getpid() != owner_) {
    // A child that was forked, as data loading workers are: it has none of our threads, and no say in the group.
    new std::shared_ptr<Engine>(std::move(engine_));
    return;
  }
  WithoutGil without;
  engine_->shut_down(nullptr);
}

std::unordered_map<std::string, std::string> CclBackend::facts() {
  Collectives& collectives = engine_->collectives();
  const bool direct = collectives.group().reach() == Reach::kernel;
  return {{"hosts", std::to_string(collectives.hosts())},
          {"ranks here", std::to_string(collectives.group().size())},
          {"inside", direct ? "buffer to buffer" : "shared memory"},
          {"between", collectives.link_name()},
          {"isa", reduce_isa()},
          {"workers", std::to_string(collectives.group().tuning().workers)}};
}

c10d::ErrorType CclBackend::getError() {
  Group& group = engine_->collectives().group();
  if (!group.failed()) return c10d::ErrorType::SUCCESS;
  const auto kind = static_cast<Failure>(group.segment().header().failure.load());
  if (kind == Failure::timed_out) return c10d::ErrorType::TIMEOUT;
  return kind == Failure::peer_lost ? c10d::ErrorType::REMOTE_ERROR : c10d::ErrorType::COMM_ERROR;
}

// ---- running ----

CclBackend::WorkPtr CclBackend::keep(WorkPtr work) {
  if (coalescing_) coalesced_.push_back(work);
  return work;
}

void CclBackend::startCoalescing() { coalescing_ = true; }

CclBackend::WorkPtr CclBackend::endCoalescing() {
  coalescing_ = false;
  return c10::make_intrusive<ManyWorks>(std::move(coalesced_));
}

void CclBackend::abort() {
  if (getpid() != owner_) return;
  WithoutGil without;
  engine_->shut_down("aborted");
}

void CclBackend::shutdown() {
  if (getpid() != owner_) return;
  WithoutGil without;
  engine_->shut_down(nullptr);
}

template <typename Body>
CclBackend::WorkPtr CclBackend::run(c10d::OpType type, const char* title, const Tensors& inputs,
                                    const Tensors& outputs, bool async, std::chrono::milliseconds timeout,
                                    Body body) {
  TORCH_CHECK(getpid() == owner_, "ccl: a forked process is not a rank; form a group of its own");
  if (timeout <= std::chrono::milliseconds(0)) timeout = options_->timeout;
  async = async || coalescing_;
  const uint64_t seq = ++seq_;
  // Without a profiler the title is for nobody, and costs more than a small collective's arithmetic.
  if (!at::hasCallbacks()) title = nullptr;
  auto work = c10::make_intrusive<CclWork>(engine_, rank_, type, title, seq, inputs, outputs, async);
  auto run = [engine = engine_.get(), seq, timeout, body = std::move(body)] {
    body(engine->collectives(), Turn{seq, timeout, Clock::now() + timeout});
  };
  if (!async && engine_->run_now(*work, inputs, run)) return work;
  work->kept = inputs;
  work->run = std::move(run);
  engine_->submit(work, async);
  return keep(work);
}

// ---- collectives ----

CclBackend::WorkPtr CclBackend::broadcast(Tensors& tensors, const c10d::BroadcastOptions& opts) {
  const auto& tensor = only(tensors, "broadcast");
  check_root(opts.rootRank, size_, "broadcast");
  const Filled buffer(tensor, opts.rootRank == rank_);
  const auto root = static_cast<int>(opts.rootRank);
  return run(c10d::OpType::BROADCAST, "ccl:broadcast", tensors, tensors, opts.asyncOp, opts.timeout,
             [=, here = rank_](Collectives& ccl, const Turn& turn) {
               ccl.broadcast(turn, dtype_of(buffer.dense()), buffer.span(), root);
               if (root != here) buffer.give_back();
             });
}

CclBackend::WorkPtr CclBackend::allreduce(Tensors& tensors, const c10d::AllreduceOptions& opts) {
  const auto& tensor = only(tensors, "all_reduce");
  const auto how = reduction_of(tensor, opts.reduceOp);
  const Filled buffer(tensor, true);
  return run(c10d::OpType::ALLREDUCE, "ccl:all_reduce", tensors, tensors, opts.asyncOp, opts.timeout,
             [=](Collectives& ccl, const Turn& turn) {
               void* data = buffer.span().data;
               ccl.allreduce(turn, data, data, reduced_count(buffer.dense()), how);
               buffer.give_back();
             });
}

CclBackend::WorkPtr CclBackend::allreduce_coalesced(Tensors& tensors, const c10d::AllreduceCoalescedOptions& opts) {
  check_all(tensors, "all_reduce_coalesced");
  std::vector<Reduction> hows;
  for (const auto& tensor : tensors) hows.push_back(reduction_of(tensor, opts.reduceOp));
  return run(c10d::OpType::ALLREDUCE_COALESCED, "ccl:all_reduce", tensors, tensors, opts.asyncOp, opts.timeout,
             [hows, buffers = filled(tensors, true)](Collectives& ccl, const Turn& turn) {
               for (size_t i = 0; i < buffers.size(); i++) {
                 void* data = buffers[i].span().data;
                 ccl.allreduce(turn, data, data, reduced_count(buffers[i].dense()), hows[i]);
                 buffers[i].give_back();
               }
             });
}

CclBackend::WorkPtr CclBackend::reduce(Tensors& tensors, const c10d::ReduceOptions& opts) {
  const auto& tensor = only(tensors, "reduce");
  check_root(opts.rootRank, size_, "reduce");
  const auto how = reduction_of(tensor, opts.reduceOp);
  const Filled buffer(tensor, true);
  const auto root = static_cast<int>(opts.rootRank);
  return run(c10d::OpType::REDUCE, "ccl:reduce", tensors, tensors, opts.asyncOp, opts.timeout,
             [=, here = rank_](Collectives& ccl, const Turn& turn) {
               void* data = buffer.span().data;
               ccl.reduce(turn, data, data, reduced_count(buffer.dense()), how, root);
               if (root == here) buffer.give_back();
             });
}

CclBackend::WorkPtr CclBackend::allgather(Lists& outputs, Tensors& inputs, const c10d::AllgatherOptions& opts) {
  const auto& input = only(inputs, "all_gather");
  TORCH_CHECK_VALUE(outputs.size() == 1 && static_cast<int>(outputs[0].size()) == size_, "all_gather: ",
                    outputs.empty() ? 0 : outputs[0].size(), " output tensors for ", size_, " ranks");
  check_all(outputs[0], "all_gather");
  bool even = true;
  for (const auto& output : outputs[0]) {
    same_type(output, input, "all_gather");
    even = even && output.nbytes() == outputs[0][0].nbytes();
  }
  TORCH_CHECK_VALUE(outputs[0][rank_].numel() == input.numel(), "all_gather: the input has ", input.numel(),
                    " elements, its place among the outputs ", outputs[0][rank_].numel());
  return run(c10d::OpType::ALLGATHER, "ccl:all_gather", inputs, outputs[0], opts.asyncOp, opts.timeout,
             [even, in = input.contiguous(), outs = filled(outputs[0], false)](Collectives& ccl, const Turn& turn) {
               ccl.allgather(turn, dtype_of(in), read_span(in), write_spans(outs), even);
               give_back(outs);
             });
}

CclBackend::WorkPtr CclBackend::_allgather_base(at::Tensor& output, at::Tensor& input,
                                                const c10d::AllgatherOptions& opts) {
  check_tensor(output, "all_gather_into_tensor"), check_tensor(input, "all_gather_into_tensor");
  same_type(output, input, "all_gather_into_tensor");
  TORCH_CHECK_VALUE(output.numel() == input.numel() * size_, "all_gather_into_tensor: the output has ", output.numel(),
                    " elements, and ", size_, " ranks with ", input.numel(), " each are gathered");
  const Filled out(output, false);
  return run(c10d::OpType::_ALLGATHER_BASE, "ccl:_all_gather_base", {input}, {output}, opts.asyncOp, opts.timeout,
             [out, in = input.contiguous(), size = size_](Collectives& ccl, const Turn& turn) {
               ccl.allgather(turn, dtype_of(in), read_span(in), equal_parts(out.span(), size), true);
               out.give_back();
             });
}

CclBackend::WorkPtr CclBackend::allgather_coalesced(Lists& outputs, Tensors& inputs,
                                                    const c10d::AllgatherOptions& opts) {
  TORCH_CHECK_VALUE(static_cast<int>(outputs.size()) == size_, "all_gather_coalesced: ", outputs.size(),
                    " output lists for ", size_, " ranks");
  std::vector<WorkPtr> works;
  for (size_t i = 0; i < inputs.size(); i++) {
    Lists outs(1);
    Tensors in{inputs[i]};
    for (const auto& list : outputs) {
      TORCH_CHECK_VALUE(list.size() == inputs.size(), "all_gather_coalesced: lists differ in length");
      outs[0].push_back(list[i]);
    }
    works.push_back(allgather(outs, in, opts));
  }
  return c10::make_intrusive<ManyWorks>(std::move(works));
}

CclBackend::WorkPtr CclBackend::allgather_into_tensor_coalesced(Tensors& outputs, Tensors& inputs,
                                                                const c10d::AllgatherOptions& opts) {
  TORCH_CHECK_VALUE(outputs.size() == inputs.size(), "all_gather_into_tensor_coalesced: lists differ in length");
  std::vector<WorkPtr> works;
  for (size_t i = 0; i < inputs.size(); i++) works.push_back(_allgather_base(outputs[i], inputs[i], opts));
  return c10::make_intrusive<ManyWorks>(std::move(works));
}

CclBackend::WorkPtr CclBackend::gather(Lists& outputs, Tensors& inputs, const c10d::GatherOptions& opts) {
  const auto& input = only(inputs, "gather");
  check_root(opts.rootRank, size_, "gather");
  const auto root = static_cast<int>(opts.rootRank);
  Tensors results;
  if (root == rank_) {
    TORCH_CHECK_VALUE(outputs.size() == 1 && static_cast<int>(outputs[0].size()) == size_, "gather: the root needs ",
                      size_, " output tensors");
    results = outputs[0];
    check_all(results, "gather");
    for (const auto& result : results) {
      same_type(result, input, "gather");
      TORCH_CHECK_VALUE(result.numel() == input.numel(), "gather: an output has ", result.numel(),
                        " elements, the input ", input.numel());
    }
  } else {
    TORCH_CHECK_VALUE(outputs.empty() || outputs[0].empty(), "gather: only the root takes output tensors");
  }
  return run(c10d::OpType::GATHER, "ccl:gather", inputs, results, opts.asyncOp, opts.timeout,
             [root, in = input.contiguous(), outs = filled(results, false)](Collectives& ccl, const Turn& turn) {
               ccl.gather(turn, dtype_of(in), read_span(in), write_spans(outs), root);
               give_back(outs);
             });
}

CclBackend::WorkPtr CclBackend::scatter(Tensors& outputs, Lists& inputs, const c10d::ScatterOptions& opts) {
  const auto& output = only(outputs, "scatter");
  check_root(opts.rootRank, size_, "scatter");
  const auto root = static_cast<int>(opts.rootRank);
  Tensors sources;
  if (root == rank_) {
    TORCH_CHECK_VALUE(inputs.size() == 1 && static_cast<int>(inputs[0].size()) == size_, "scatter: the root needs ",
                      size_, " input tensors");
    sources = inputs[0];
    check_all(sources, "scatter");
    for (const auto& source : sources) {
      same_type(source, output, "scatter");
      TORCH_CHECK_VALUE(source.numel() == output.numel(), "scatter: an input has ", source.numel(),
                        " elements, the output ", output.numel());
    }
  } else {
    TORCH_CHECK_VALUE(inputs.empty() || inputs[0].empty(), "scatter: only the root gives input tensors");
  }
  const Filled out(output, false);
  return run(c10d::OpType::SCATTER, "ccl:scatter", sources, outputs, opts.asyncOp, opts.timeout,
             [root, out, ins = dense(sources)](Collectives& ccl, const Turn& turn) {
               ccl.scatter(turn, dtype_of(out.dense()), read_spans(ins), out.span(), root);
               out.give_back();
             });
}

CclBackend::WorkPtr CclBackend::reduce_scatter(Tensors& outputs, Lists& inputs,
                                               const c10d::ReduceScatterOptions& opts) {
  const auto& output = only(outputs, "reduce_scatter");
  TORCH_CHECK_VALUE(inputs.size() == 1 && static_cast<int>(inputs[0].size()) == size_, "reduce_scatter: ",
                    inputs.empty() ? 0 : inputs[0].size(), " input tensors for ", size_, " ranks");
  check_all(inputs[0], "reduce_scatter");
  for (const auto& input : inputs[0]) same_type(input, output, "reduce_scatter");
  TORCH_CHECK_VALUE(inputs[0][rank_].numel() == output.numel(), "reduce_scatter: the output has ", output.numel(),
                    " elements, its input ", inputs[0][rank_].numel());
  const auto how = reduction_of(output, opts.reduceOp);
  const Filled out(output, false);
  return run(c10d::OpType::REDUCE_SCATTER, "ccl:reduce_scatter", inputs[0], outputs, opts.asyncOp, opts.timeout,
             [how, out, ins = dense(inputs[0])](Collectives& ccl, const Turn& turn) {
               ccl.reduce_scatter(turn, read_spans(ins), out.span().data, how);
               out.give_back();
             });
}

CclBackend::WorkPtr CclBackend::_reduce_scatter_base(at::Tensor& output, at::Tensor& input,
                                                     const c10d::ReduceScatterOptions& opts) {
  check_tensor(output, "reduce_scatter_tensor"), check_tensor(input, "reduce_scatter_tensor");
  same_type(output, input, "reduce_scatter_tensor");
  TORCH_CHECK_VALUE(input.numel() == output.numel() * size_, "reduce_scatter_tensor: the input has ", input.numel(),
                    " elements, and is scattered over ", size_, " ranks with ", output.numel(), " each");
  const auto how = reduction_of(output, opts.reduceOp);
  const Filled out(output, false);
  return run(c10d::OpType::_REDUCE_SCATTER_BASE, "ccl:_reduce_scatter_base", {input}, {output}, opts.asyncOp,
             opts.timeout, [how, out, in = input.contiguous(), size = size_](Collectives& ccl, const Turn& turn) {
               ccl.reduce_scatter(turn, equal_parts(read_span(in), size), out.span().data, how);
               out.give_back();
             });
}

CclBackend::WorkPtr CclBackend::reduce_scatter_tensor_coalesced(Tensors& outputs, Tensors& inputs,
                                                                const c10d::ReduceScatterOptions& opts) {
  TORCH_CHECK_VALUE(outputs.size() == inputs.size(), "reduce_scatter_tensor_coalesced: lists differ in length");
  std::vector<WorkPtr> works;
  for (size_t i = 0; i < inputs.size(); i++) works.push_back(_reduce_scatter_base(outputs[i], inputs[i], opts));
  return c10::make_intrusive<ManyWorks>(std::move(works));
}

CclBackend::WorkPtr CclBackend::alltoall_base(at::Tensor& output, at::Tensor& input,
                                              std::vector<int64_t>& output_splits,
                                              std::vector<int64_t>& input_splits, const c10d::AllToAllOptions& opts) {
  check_tensor(output, "all_to_all_single"), check_tensor(input, "all_to_all_single");
  same_type(output, input, "all_to_all_single");
  const Filled out(output, false);
  const auto in = input.contiguous();
  const auto ins = split_parts(read_span(in), input, input_splits, size_, "all_to_all_single");
  const auto outs = split_parts(out.span(), output, output_splits, size_, "all_to_all_single");
  return run(c10d::OpType::ALLTOALL_BASE, "ccl:all_to_all", {input}, {output}, opts.asyncOp, opts.timeout,
             [=](Collectives& ccl, const Turn& turn) {
               ccl.alltoall(turn, dtype_of(in), ins, outs);
               out.give_back();
             });
}

CclBackend::WorkPtr CclBackend::alltoall(Tensors& outputs, Tensors& inputs, const c10d::AllToAllOptions& opts) {
  TORCH_CHECK_VALUE(static_cast<int>(outputs.size()) == size_ && static_cast<int>(inputs.size()) == size_,
                    "all_to_all: ", inputs.size(), " inputs and ", outputs.size(), " outputs for ", size_, " ranks");
  check_all(inputs, "all_to_all"), check_all(outputs, "all_to_all");
  for (int i = 0; i < size_; i++) same_type(inputs[i], outputs[0], "all_to_all"), same_type(outputs[i], outputs[0], "all_to_all");
  return run(c10d::OpType::ALLTOALL, "ccl:all_to_all", inputs, outputs, opts.asyncOp, opts.timeout,
             [ins = dense(inputs), outs = filled(outputs, false)](Collectives& ccl, const Turn& turn) {
               ccl.alltoall(turn, dtype_of(ins[0]), read_spans(ins), write_spans(outs));
               give_back(outs);
             });
}

CclBackend::WorkPtr CclBackend::barrier(const c10d::BarrierOptions& opts) {
  return run(c10d::OpType::BARRIER, "ccl:barrier", {}, {}, opts.asyncOp, opts.timeout,
             [](Collectives& ccl, const Turn& turn) { ccl.barrier(turn); });
}

void CclBackend::monitoredBarrier(const c10d::BarrierOptions& opts, bool /*wait_all_ranks*/) {
  // Every barrier of ours names who did not come: all of them on this host.
  c10d::BarrierOptions waited = opts;
  waited.asyncOp = false;
  barrier(waited)->wait();
}

// ---- point to point ----

CclBackend::WorkPtr CclBackend::mail(bool sending, c10d::OpType type, const char* title, Tensors& tensors, int peer,
                                     int tag) {
  const char* name = sending ? "send" : "recv";
  const auto& tensor = only(tensors, name);
  const bool any = peer < 0;
  if (!any) {
    check_root(peer, size_, name);
    TORCH_CHECK_VALUE(peer != rank_, name, ": rank ", peer, " is this rank itself");
  }
  try {
    engine_->collectives().group().check_usable();
  } catch (...) {
    std::rethrow_exception(as_torch_error(std::current_exception()));
  }
  const Filled buffer(tensor, sending);
  if (others_) return keep(mail_to_other_hosts(sending, type, buffer, peer, tag));
  const uint64_t seq = ++mail_seq_;
  auto work = c10::make_intrusive<CclWork>(engine_, rank_, type, title, seq, tensors, sending ? Tensors{} : tensors, true);
  work->kept = {buffer.dense(), tensor};
  if (!sending) work->after = [buffer] { buffer.give_back(); };
  auto letter = std::make_shared<Letter>();
  letter->sending = sending;
  letter->peer = peer;  // one host: the index is the rank
  letter->tag = tag;
  letter->data = buffer.span().data;
  letter->bytes = buffer.span().bytes;
  letter->seq = seq;
  letter->timeout = options_->timeout;
  letter->deadline = Clock::now() + options_->timeout;
  engine_->post(std::move(letter), work);
  return keep(work);
}

CclBackend::WorkPtr CclBackend::mail_to_other_hosts(bool sending, c10d::OpType type, const Filled& buffer, int peer,
                                                   int tag) {
  const auto title = std::string(sending ? "send to " : "recv from ") + others_->name(peer);
  auto work = c10::make_intrusive<ForeignWork>(engine_, others_, type, title, peer, options_->timeout);
  // gloo cannot receive nothing from anybody: what is empty travels as one byte.
  Tensors inner{buffer.dense().nbytes() > 0 ? buffer.dense() : at::zeros({1}, at::kByte)};
  work->start([&](c10d::Backend& gloo) {
    return sending ? gloo.send(inner, peer, tag) : peer < 0 ? gloo.recvAnysource(inner, tag) : gloo.recv(inner, peer, tag);
  });
  if (!sending) work->then = [buffer] { buffer.give_back(); };
  return work;
}

CclBackend::WorkPtr CclBackend::send(Tensors& tensors, int to, int tag) {
  return mail(true, c10d::OpType::SEND, "ccl:send", tensors, to, tag);
}

CclBackend::WorkPtr CclBackend::recv(Tensors& tensors, int from, int tag) {
  return mail(false, c10d::OpType::RECV, "ccl:recv", tensors, from, tag);
}

CclBackend::WorkPtr CclBackend::recvAnysource(Tensors& tensors, int tag) {
  return mail(false, c10d::OpType::RECVANYSOURCE, "ccl:recvAnySource", tensors, -1, tag);
}

}  // namespace plough
