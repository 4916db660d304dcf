#include "mailbox.h"

#include <algorithm>
#include <cstring>

namespace plough {

Mailbox::Mailbox(Group& group) : group_(group), index_(group.index()), size_(group.size()), lanes_(size_) {
  for (Lane& lane : lanes_) lane.posted.resize(kMessages);
}

void Mailbox::post(std::shared_ptr<Letter> letter) {
  std::lock_guard<std::mutex> lock(mutex_);
  if (letter->sending) {
    lanes_[letter->peer].unposted.push_back(std::move(letter));
  } else {
    expected_.push_back(std::move(letter));
  }
}

bool Mailbox::idle() {
  std::lock_guard<std::mutex> lock(mutex_);
  if (!expected_.empty()) return false;
  for (const Lane& lane : lanes_) {
    if (!lane.unposted.empty() || lane.streaming) return false;
    for (const auto& letter : lane.posted)
      if (letter) return false;
  }
  return true;
}

void Mailbox::ring(int peer) {
  Bell& bell = group_.segment().bell(peer);
  bell.rings.fetch_add(1);
  wake_sleepers(bell.rings, bell.listeners);
}

void Mailbox::wake() { ring(index_); }

void Mailbox::wait_for_ring(const Patience& patience, const std::function<bool()>& until) {
  Bell& bell = group_.segment().bell(index_);
  const uint32_t seen = bell.rings.load();
  // A ring between the last progress() and now is not lost: look once more before waiting.
  if (progress() || until()) return;
  struct Enough {};
  const auto limit = Clock::now() + std::chrono::milliseconds(50);
  try {
    wait_until(
        bell.rings, bell.listeners, patience, [&] { return bell.rings.load(std::memory_order_acquire) != seen || until(); },
        [&] {
          if (Clock::now() > limit || group_.failed()) throw Enough();
        });
  } catch (const Enough&) {
    // Time to look at deadlines.
  }
}

bool Mailbox::progress() {
  std::vector<Finished> finished;
  bool moved = false;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    try {
      for (int peer = 0; peer < size_; peer++) {
        if (peer == index_) continue;
        moved = push_sends(peer, finished) || moved;
        moved = feed_stage(peer) || moved;
        moved = take_arrivals(peer) || moved;
        moved = drain_stage(peer, finished) || moved;
        moved = match(peer, finished) || moved;
      }
      look_for_trouble(finished);
    } catch (...) {
      // The group has failed; look_for_trouble or whoever reads from it next will say so for each letter.
      if (!group_.failed()) throw;
      looked_ = {};
      look_for_trouble(finished);
    }
  }
  if (!finished.empty()) group_.mail_waits_for(-1);
  for (const Finished& each : finished) each.letter->done(*each.letter, each.error);
  return moved || !finished.empty();
}

// ---- the sender's side ----

bool Mailbox::push_sends(int peer, std::vector<Finished>& finished) {
  Channel& channel = group_.segment().channel(index_, peer);
  Lane& lane = lanes_[peer];
  bool moved = false;
  for (uint32_t slot = 0; slot < kMessages; slot++) {
    Message& message = channel.messages[slot];
    if (static_cast<MessageState>(message.state.load(std::memory_order_acquire)) != MessageState::done) continue;
    if (lane.posted[slot]) finished.push_back({std::move(lane.posted[slot]), nullptr});
    lane.posted[slot] = nullptr;
    message.state.store(static_cast<uint32_t>(MessageState::free), std::memory_order_relaxed);
    moved = true;
  }
  while (!lane.unposted.empty()) {
    const uint64_t number = channel.posted.load(std::memory_order_relaxed);
    if (number - channel.taken.load(std::memory_order_acquire) >= kMessages) break;
    uint32_t slot = 0;
    while (slot < kMessages && channel.messages[slot].state.load(std::memory_order_acquire) !=
                                   static_cast<uint32_t>(MessageState::free))
      slot++;
    if (slot == kMessages) break;
    std::shared_ptr<Letter> letter = std::move(lane.unposted.front());
    lane.unposted.pop_front();
    Message& message = channel.messages[slot];
    message.tag = letter->tag;
    message.bytes = letter->bytes;
    message.address = reinterpret_cast<uint64_t>(letter->data);
    const bool eager = letter->bytes <= kEagerBytes;
    if (eager && letter->bytes > 0) std::memcpy(channel.eager[slot], letter->data, letter->bytes);
    message.state.store(static_cast<uint32_t>(eager ? MessageState::eager : MessageState::posted),
                        std::memory_order_relaxed);
    channel.order[number % kMessages] = slot;
    channel.posted.store(number + 1, std::memory_order_release);
    if (eager) {
      // Its bytes are on their way: the sender may use its buffer again.
      finished.push_back({std::move(letter), nullptr});
    } else {
      letter->slot = static_cast<int>(slot);
      lane.posted[slot] = std::move(letter);
    }
    ring(peer);
    moved = true;
  }
  return moved;
}

bool Mailbox::feed_stage(int peer) {
  Channel& channel = group_.segment().channel(index_, peer);
  const int32_t slot = channel.staging.load(std::memory_order_acquire);
  if (slot < 0 || !lanes_[peer].posted[slot]) return false;
  Letter& letter = *lanes_[peer].posted[slot];
  bool moved = false;
  while (letter.moved < letter.bytes) {
    const uint64_t filled = channel.filled.load(std::memory_order_relaxed);
    if (filled - channel.drained.load(std::memory_order_acquire) >= 2) break;
    const size_t length = std::min(kStageBytes, letter.bytes - letter.moved);
    std::memcpy(channel.stage[filled & 1], at(letter.data, letter.moved), length);
    letter.moved += length;
    channel.filled.store(filled + 1, std::memory_order_release);
    ring(peer);
    moved = true;
  }
  return moved;
}

// ---- the receiver's side ----

bool Mailbox::take_arrivals(int peer) {
  Channel& channel = group_.segment().channel(peer, index_);
  const uint64_t posted = channel.posted.load(std::memory_order_acquire);
  uint64_t taken = channel.taken.load(std::memory_order_relaxed);
  // Left where they are until somebody waits for something: an unmatched flood must not fill our memory.
  if (taken == posted || expected_.empty()) return false;
  for (; taken < posted; taken++) {
    const uint32_t slot = channel.order[taken % kMessages];
    const Message& message = channel.messages[slot];
    const bool eager = message.state.load(std::memory_order_acquire) == static_cast<uint32_t>(MessageState::eager);
    lanes_[peer].arrived.push_back({slot, message.tag, message.bytes, message.address, eager});
  }
  channel.taken.store(taken, std::memory_order_release);
  ring(peer);
  return true;
}

bool Mailbox::match(int peer, std::vector<Finished>& finished) {
  Lane& lane = lanes_[peer];
  bool moved = false;
  for (size_t i = 0; i < lane.arrived.size();) {
    const Arrived arrived = lane.arrived[i];
    const auto wanted = std::find_if(expected_.begin(), expected_.end(), [&](const std::shared_ptr<Letter>& letter) {
      return (letter->peer < 0 || letter->peer == peer) && letter->tag == arrived.tag;
    });
    if (wanted == expected_.end()) {
      i++;
      continue;
    }
    std::shared_ptr<Letter> letter = *wanted;
    if (letter->bytes != arrived.bytes)
      group_.fail(Failure::mismatch, "sizes differ between send and recv with tag " + std::to_string(arrived.tag) + ": " +
                                         group_.who(peer) + " sends " + std::to_string(arrived.bytes) + " bytes, " +
                                         group_.who(index_) + " receives " + std::to_string(letter->bytes));
    const bool stream = !arrived.eager && group_.reach() == Reach::slots;
    if (stream && lane.streaming) return moved;  // one at a time
    letter->from = peer;
    // Still expected meanwhile: if this throws, the letter must be told as all others.
    if (!stream) deliver(peer, arrived, *letter);
    expected_.erase(wanted);
    lane.arrived.erase(lane.arrived.begin() + static_cast<std::ptrdiff_t>(i));
    moved = true;
    if (stream) {
      letter->slot = static_cast<int>(arrived.slot);
      lane.streaming = std::move(letter);
      lane.streaming_slot = arrived.slot;
      group_.segment().channel(peer, index_).staging.store(static_cast<int32_t>(arrived.slot), std::memory_order_release);
      ring(peer);
      continue;
    }
    finished.push_back({std::move(letter), nullptr});
  }
  return moved;
}

void Mailbox::deliver(int peer, const Arrived& arrived, Letter& letter) {
  Channel& channel = group_.segment().channel(peer, index_);
  if (arrived.eager) {
    if (letter.bytes > 0) std::memcpy(letter.data, channel.eager[arrived.slot], letter.bytes);
  } else {
    const size_t step = 8 * group_.tuning().chunk_bytes;
    for (size_t offset = 0; offset < letter.bytes; offset += step) {
      if (group_.failed()) group_.throw_failure();
      try {
        read_memory(group_.reach(), group_.pid(peer), at(letter.data, offset), arrived.address + offset,
                    std::min(step, letter.bytes - offset));
      } catch (const Error& error) {
        group_.fail(Failure::peer_lost, group_.who(peer) + " was lost while it sent: " + error.what());
      }
    }
    // A sender that gave up did not wait for us: what was read since may be anything.
    if (group_.failed()) group_.throw_failure();
  }
  channel.messages[arrived.slot].state.store(static_cast<uint32_t>(MessageState::done), std::memory_order_release);
  ring(peer);
}

bool Mailbox::drain_stage(int peer, std::vector<Finished>& finished) {
  Lane& lane = lanes_[peer];
  if (!lane.streaming) return false;
  Channel& channel = group_.segment().channel(peer, index_);
  Letter& letter = *lane.streaming;
  bool moved = false;
  while (letter.moved < letter.bytes) {
    const uint64_t drained = channel.drained.load(std::memory_order_relaxed);
    if (channel.filled.load(std::memory_order_acquire) == drained) break;
    const size_t length = std::min(kStageBytes, letter.bytes - letter.moved);
    std::memcpy(at(letter.data, letter.moved), channel.stage[drained & 1], length);
    letter.moved += length;
    channel.drained.store(drained + 1, std::memory_order_release);
    moved = true;
  }
  if (letter.moved == letter.bytes) {
    channel.staging.store(-1, std::memory_order_relaxed);
    channel.messages[lane.streaming_slot].state.store(static_cast<uint32_t>(MessageState::done),
                                                      std::memory_order_release);
    finished.push_back({std::move(lane.streaming), nullptr});
    lane.streaming = nullptr;
    moved = true;
  }
  if (moved) ring(peer);
  return moved;
}

// ---- trouble ----

std::string Mailbox::describe(const Letter& letter) {
  const std::string number = " #" + std::to_string(letter.seq) + " (tag " + std::to_string(letter.tag) + ")";
  if (letter.sending) return "send" + number + " to " + group_.who(letter.peer);
  return "recv" + number + " from " + (letter.peer < 0 ? "any rank" : group_.who(letter.peer));
}

// Whoever is gone by now may have done its part since we looked: that comes first.
bool Mailbox::has_news(const Letter& letter, int peer) {
  if (letter.sending) {
    if (letter.slot < 0) return false;
    const Message& message = group_.segment().channel(index_, peer).messages[letter.slot];
    return message.state.load(std::memory_order_acquire) == static_cast<uint32_t>(MessageState::done);
  }
  const Channel& channel = group_.segment().channel(peer, index_);
  const auto differ = [](const std::atomic<uint64_t>& theirs, const std::atomic<uint64_t>& ours) {
    return theirs.load(std::memory_order_acquire) != ours.load(std::memory_order_relaxed);
  };
  // A receive has a slot while it is streamed.
  return letter.slot >= 0 ? differ(channel.filled, channel.drained) : differ(channel.posted, channel.taken);
}

void Mailbox::look_for_trouble(std::vector<Finished>& finished) {
  const auto now = Clock::now();
  if (now - looked_ < std::chrono::milliseconds(10) && !group_.failed()) return;
  looked_ = now;
  std::exception_ptr error;
  bool first = true;
  const auto inspect = [&](const Letter& letter) {
    if (error) return;
    if (first) group_.mail_waits_for(letter.peer);
    first = false;
    try {
      if (group_.failed()) group_.throw_failure();
      const int only = letter.peer;
      for (int peer = std::max(only, 0); peer < (only < 0 ? size_ : only + 1); peer++) {
        if (peer == index_) continue;
        const bool dead = !group_.alive(peer);
        if (!dead && (only < 0 || !group_.has_left(peer))) continue;
        if (has_news(letter, peer)) continue;
        group_.fail(Failure::peer_lost, group_.who(peer) + (dead ? " died; " : " has left the group; ") +
                                            describe(letter) + " cannot be finished");
      }
      if (now <= letter.deadline) return;
      char seconds[32];
      std::snprintf(seconds, sizeof(seconds), "%g", static_cast<double>(letter.timeout.count()) / 1000.0);
      group_.fail(Failure::timed_out, describe(letter) + " timed out after " + seconds + " s" +
                                          (only < 0 ? "" : ": " + group_.trail(only)));
    } catch (...) {
      error = std::current_exception();
    }
  };
  for (const auto& letter : expected_) inspect(*letter);
  for (const Lane& lane : lanes_) {
    for (const auto& letter : lane.unposted) inspect(*letter);
    for (const auto& letter : lane.posted)
      if (letter) inspect(*letter);
    if (lane.streaming) inspect(*lane.streaming);
  }
  if (error) give_up(error, finished);
}

void Mailbox::give_up(std::exception_ptr error, std::vector<Finished>& finished) {
  for (auto& letter : expected_) finished.push_back({std::move(letter), error});
  expected_.clear();
  for (Lane& lane : lanes_) {
    for (auto& letter : lane.unposted) finished.push_back({std::move(letter), error});
    lane.unposted.clear();
    for (auto& letter : lane.posted)
      if (letter) finished.push_back({std::move(letter), error}), letter = nullptr;
    if (lane.streaming) finished.push_back({std::move(lane.streaming), error}), lane.streaming = nullptr;
  }
}

void Mailbox::fail_all(std::exception_ptr error) {
  std::vector<Finished> finished;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    give_up(error, finished);
  }
  for (const Finished& each : finished) each.letter->done(*each.letter, each.error);
}

}  // namespace plough
