// Memory that the ranks of one host share: anonymous, private to the user, gone with the last of them.
//
// It is a memfd, so a small /dev/shm is no limit and a killed rank leaves no name behind. The leader makes
// it; the others open it through the leader's /proc entry, which the kernel allows to the same user only.
#pragma once

#include <memory>
#include <string>

#include "layout.h"

namespace plough {

class Segment {
 public:
  // Make the memory of a group of `ranks` ranks on this host, out of `world`. Throws Error naming the cause.
  static std::shared_ptr<Segment> create(int ranks, int world, size_t slot_bytes, const std::string& token);

  // Open the memory another process made. Throws Error when it cannot be reached or is not the right one.
  static std::shared_ptr<Segment> attach(int pid, int fd, const std::string& token);

  ~Segment();
  Segment(const Segment&) = delete;
  Segment& operator=(const Segment&) = delete;

  int fd() const { return fd_; }
  const Layout& layout() const { return layout_; }
  Header& header() { return at_offset<Header>(0); }
  RankState& state(int i) { return at_offset<RankState>(layout_.state(i)); }
  Bell& bell(int i) { return at_offset<Bell>(layout_.bell(i)); }
  Cell& cell(int i, uint32_t tick) { return at_offset<Cell>(layout_.cell(i, tick)); }
  PieceEntry* table(int i, uint32_t tick) { return &at_offset<PieceEntry>(layout_.table(i, tick)); }
  char* slot(int i, uint32_t tick) { return base_ + layout_.slot(i, tick); }
  Channel& channel(int from, int to) { return at_offset<Channel>(layout_.channel(from, to)); }

  // No longer needed once everybody has attached.
  void close_fd();

 private:
  Segment(int fd, char* base, const Layout& layout) : fd_(fd), base_(base), layout_(layout) {}

  template <typename T>
  T& at_offset(size_t offset) {
    return *reinterpret_cast<T*>(base_ + offset);
  }

  int fd_;
  char* base_;
  Layout layout_;
};

}  // namespace plough
