// The collectives, over one host or several.
//
// On one host each is a round or two of its group. Over several, the ranks of a host first bring together
// what is theirs at their leader, leaders exchange what the hosts already reduced or packed, and then hand
// out. So an allreduce sends each byte over the network once per host, not once per rank.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "group.h"
#include "link.h"

namespace plough {

struct Place {
  int host;
  int index;  // among the ranks of that host, in the order of the ranks; 0 leads
};

// One call of a collective: its number, and how long it may take.
struct Turn {
  uint64_t seq = 0;
  std::chrono::milliseconds timeout{0};
  Deadline deadline;
};

struct Reduction {
  DType dtype = DType::u8;
  RedOp op = RedOp::sum;
  double scale = 1.0;  // ours, for RedOp::premul_sum
};

class Collectives {
 public:
  // places[r]: where rank r is. link: null when there is one host, or when we do not lead ours.
  Collectives(std::unique_ptr<Group> group, std::unique_ptr<Link> link, std::vector<Place> places, int rank);

  // Asked for a better explanation when the link fails, e.g. what other hosts have said of themselves.
  void on_link_failure(std::function<std::string(const std::string&)> explain) { explain_ = std::move(explain); }

  // Buffers are contiguous. Sizes are in elements for reductions, in bytes elsewhere; `dtype` is only
  // compared. All throw what Group::begin and the rounds throw.
  void allreduce(const Turn& turn, const void* in, void* out, size_t count, const Reduction& how);
  void reduce(const Turn& turn, const void* in, void* out, size_t count, const Reduction& how, int root);
  void broadcast(const Turn& turn, DType dtype, Span data, int root);
  void allgather(const Turn& turn, DType dtype, ConstSpan own, const std::vector<Span>& outs, bool even);
  void gather(const Turn& turn, DType dtype, ConstSpan own, const std::vector<Span>& outs, int root);
  void scatter(const Turn& turn, DType dtype, const std::vector<ConstSpan>& ins, Span own, int root);
  void reduce_scatter(const Turn& turn, const std::vector<ConstSpan>& ins, void* out, const Reduction& how);
  void alltoall(const Turn& turn, DType dtype, const std::vector<ConstSpan>& ins, const std::vector<Span>& outs);
  void barrier(const Turn& turn);

  // The group has failed: let the leaders of other hosts know that we will not come.
  void abandon_link() {
    if (link_) link_->abandon();
  }

  Group& group() { return *group_; }
  int hosts() const { return static_cast<int>(members_.size()); }
  const char* link_name() const { return link_ ? link_->name() : ""; }

 private:
  class Scope;

  bool alone() const { return members_.size() == 1; }
  int root_index(int root) const { return places_[root].index; }
  bool here(int rank) const { return places_[rank].host == host_; }
  void exchange(const std::string& what, const std::vector<ConstSpan>& sends, const std::vector<Span>& recvs);
  std::string what(const Call& call, const char* step) const;
  void reduce_between_hosts(const Call& call, void* data, size_t count, const Reduction& how, int root_host);
  void hand_out(Call call, Span data);

  std::unique_ptr<Group> group_;
  std::unique_ptr<Link> link_;
  std::vector<Place> places_;
  std::vector<std::vector<int>> members_;  // ranks of each host
  const int rank_, host_;
  std::function<std::string(const std::string&)> explain_;
};

}  // namespace plough
