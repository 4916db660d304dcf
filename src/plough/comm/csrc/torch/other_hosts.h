// What a group that spans hosts has beside its collectives: messages between any two ranks, and word of a
// failure. Messages are carried by gloo; word goes through the group's store.
#pragma once

#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include <functional>
#include <mutex>
#include <string>
#include <vector>

namespace plough {

class OtherHosts {
 public:
  // flat: a backend of all ranks. names: what to call each of them.
  OtherHosts(c10::intrusive_ptr<c10d::Store> store, c10::intrusive_ptr<c10d::Backend> flat,
             std::vector<std::string> names, int rank)
      : store_(std::move(store)), flat_(std::move(flat)), names_(std::move(names)), rank_(rank) {}

  // Leave word of a failure. The first account stands. Does not wait.
  void tell(const std::string& what) const;

  // Another host may know better than `what` who is to blame: waits a moment for its word.
  std::string explain(const std::string& what) const;

  // The same when `peer` kept us waiting (-1: any): perhaps it waits for a third, and so on.
  std::string explain_wait(const std::string& what, int peer) const;

  // What carries messages, or null after a failure.
  c10::intrusive_ptr<c10d::Backend> messages() const;

  // After a failure: let go of the connections, so that whoever waits for a message of ours notices.
  void abandon();

  std::string name(int rank) const { return rank < 0 ? "any rank" : names_[rank]; }

 private:
  using Question = std::function<std::string(c10d::Store&)>;
  std::string ask(Question question) const;
  std::string follow(c10d::Store& store, int peer) const;

  const c10::intrusive_ptr<c10d::Store> store_;
  mutable std::mutex mutex_;
  c10::intrusive_ptr<c10d::Backend> flat_;
  const std::vector<std::string> names_;
  const int rank_;
};

}  // namespace plough
