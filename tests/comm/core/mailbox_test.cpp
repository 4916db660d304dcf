// Point to point: sizes by every way across, order, tags, any source, floods, several threads, failures.
#include <sys/mman.h>

#include <algorithm>
#include <cstring>
#include <random>
#include <thread>

#include "cases.h"
#include "mailbox.h"

namespace plough {
namespace {

// The mailbox of a rank, and what has come of its letters.
class Post {
 public:
  explicit Post(Member& member) : member_(member), box_(member.group()) {}

  struct Result {
    std::atomic<int> done{0};
    Outcome outcome;
    int from = -1;
  };

  std::shared_ptr<Result> send(int to, int tag, const void* data, size_t bytes, int timeout_ms = 120000) {
    return post(true, to, tag, const_cast<void*>(data), bytes, timeout_ms);
  }
  std::shared_ptr<Result> recv(int from, int tag, void* data, size_t bytes, int timeout_ms = 120000) {
    return post(false, from, tag, data, bytes, timeout_ms);
  }

  // As the caller of wait() does it.
  void wait_all() {
    while (open_ > 0) box_.wait_for_ring(member_.group().tuning().patience, [&] { return open_ == 0; });
  }
  void wait_well() {
    wait_all();
    for (const auto& result : results_) {
      check_kind(result->outcome, "", member_.title + ": a letter");
      check(result->done == 1, member_.title + ": a letter is done once");
    }
    results_.clear();
  }
  Mailbox& box() { return box_; }
  bool open() const { return open_ > 0; }

 private:
  std::shared_ptr<Result> post(bool sending, int peer, int tag, void* data, size_t bytes, int timeout_ms) {
    auto letter = std::make_shared<Letter>();
    auto result = std::make_shared<Result>();
    letter->sending = sending, letter->peer = peer, letter->tag = tag;
    letter->data = data, letter->bytes = bytes, letter->seq = results_.size() + 1;
    letter->timeout = std::chrono::milliseconds(timeout_ms);
    letter->deadline = Clock::now() + letter->timeout;
    letter->done = [this, result](Letter& own, std::exception_ptr error) {
      result->outcome = outcome_of(error), result->from = own.from;
      result->done++, open_--;
    };
    open_++;
    results_.push_back(result);
    box_.post(std::move(letter));
    return result;
  }

  Member& member_;
  Mailbox box_;
  std::atomic<int> open_{0};
  std::vector<std::shared_ptr<Result>> results_;
};

std::vector<char> letter(uint64_t seed, size_t bytes) {
  std::vector<char> data(bytes);
  for (size_t i = 0; i < bytes; i += 8) {
    const uint64_t word = hash(seed, i);
    std::memcpy(&data[i], &word, std::min<size_t>(8, bytes - i));
  }
  return data;
}

void check_letter(const std::vector<char>& found, uint64_t seed, const std::string& what) {
  const std::string size = std::to_string(found.size());
  check(found == letter(seed, found.size()), what + ": the letter of " + size + " bytes is wrong");
}

// Nothing, eager, just not eager, and around one, two and many chunks of a stream.
constexpr size_t kSizes[] = {0, 1, 2047, 2048, 2049, 65535, 65536, 65537, 131072, 131073, 300001};

void for_each_reach(int ranks, const std::function<void(Member&)>& body) {
  for (const Reach reach : {Reach::slots, Reach::direct, Reach::kernel})
    run_well({std::vector<int>(static_cast<size_t>(ranks), 0), reach}, body);
}

TEST(mail_sizes) {
  for_each_reach(2, [](Member& member) {
    Post post(member);
    const int other = 1 - member.rank;
    for (const size_t bytes : kSizes) {
      // One way, the other way, and both at once.
      for (const int way : {0, 1, 2}) {
        const std::vector<char> out = letter(hash(bytes, static_cast<uint64_t>(member.rank)), bytes);
        std::vector<char> in(bytes);
        const bool sends = way == 2 || way == member.rank, receives = way == 2 || way == other;
        if (sends) post.send(other, way, out.data(), bytes);
        if (receives) post.recv(other, way, in.data(), bytes);
        post.wait_well();
        check(post.box().idle(), member.title + ": idle when all is done");
        if (receives) check_letter(in, hash(bytes, static_cast<uint64_t>(other)), member.title);
      }
    }
  });
}

TEST(mail_out_of_order) {
  for_each_reach(2, [](Member& member) {
    Post post(member);
    std::vector<std::vector<char>> letters(50);
    for (int tag = 0; tag < 50; tag++) {
      auto& data = letters[static_cast<size_t>(tag)];
      data = letter(static_cast<uint64_t>(tag), hash(static_cast<uint64_t>(tag)) % 3 == 0 ? 5000 : 100);
      if (member.rank == 0) post.send(1, tag, data.data(), data.size());
    }
    if (member.rank == 0) return post.wait_well();
    for (int tag = 49; tag >= 0; tag--) {
      std::vector<char> in(letters[static_cast<size_t>(tag)].size());
      post.recv(0, tag, in.data(), in.size());
      post.wait_well();
      check_letter(in, static_cast<uint64_t>(tag), member.title);
    }
  });
}

// Those with the same tag come in the order they were sent, and go to receives in the order of those.
TEST(mail_keeps_order) {
  for_each_reach(2, [](Member& member) {
    Post post(member);
    std::vector<std::vector<int>> letters(300, std::vector<int>(20));
    for (size_t i = 0; i < letters.size(); i++) {
      letters[i].assign(i % 7 == 3 ? 1000 : 20, member.rank == 0 ? static_cast<int>(i) : -1);
      const size_t bytes = letters[i].size() * sizeof(int);
      if (member.rank == 0) post.send(1, 7, letters[i].data(), bytes);
      if (member.rank == 1) post.recv(i % 2 == 0 ? 0 : -1, 7, letters[i].data(), bytes);
    }
    post.wait_well();
    for (size_t i = 0; i < letters.size(); i++)
      check(letters[i][0] == static_cast<int>(i) && letters[i].back() == static_cast<int>(i),
            member.title + ": letter " + std::to_string(i) + " out of order");
  });
}

TEST(mail_any_source) {
  for_each_reach(4, [](Member& member) {
    Post post(member);
    if (member.rank > 0) {
      const std::vector<int> data(1000, member.rank);
      post.send(0, 1, data.data(), 4000);
      return post.wait_well();
    }
    std::vector<int> seen;
    for (int i = 0; i < 3; i++) {
      std::vector<int> data(1000);
      const auto result = post.recv(-1, 1, data.data(), 4000);
      post.wait_well();
      check(data[0] == result->from && data[999] == result->from, member.title + ": says whom it is from");
      seen.push_back(result->from);
    }
    std::sort(seen.begin(), seen.end());
    check(seen == std::vector<int>{1, 2, 3}, member.title + ": one from each");
  });
}

// Far more than a channel holds, between all pairs, received in another order than sent.
void flood(Member& member, Post& post, int letters, size_t most_bytes, uint64_t seed) {
  struct Incoming {
    std::vector<char> data;
    uint64_t seed;
  };
  std::vector<std::vector<char>> outgoing;
  std::vector<std::unique_ptr<Incoming>> incoming;
  const auto draw = [&](int from, int to, int i) {
    return hash(seed, static_cast<uint64_t>(from), static_cast<uint64_t>(to), static_cast<uint64_t>(i));
  };
  const auto bytes = [&](uint64_t drawn) { return drawn % (drawn % 4 == 0 ? most_bytes : 200); };
  struct Plan {
    int peer, i;
    bool sends;
  };
  std::vector<Plan> plans;
  for (int peer = 0; peer < member.world; peer++)
    for (int i = 0; i < letters && peer != member.rank; i++)
      for (const bool sends : {true, false}) plans.push_back({peer, i, sends});
  std::minstd_rand order(static_cast<unsigned>(hash(seed, static_cast<uint64_t>(member.rank))));
  std::shuffle(plans.begin(), plans.end(), order);
  for (const auto& [peer, i, sends] : plans) {
    const uint64_t drawn = sends ? draw(member.rank, peer, i) : draw(peer, member.rank, i);
    if (sends) {
      outgoing.push_back(letter(drawn, bytes(drawn)));
      post.send(peer, i, outgoing.back().data(), outgoing.back().size());
    } else {
      incoming.emplace_back(new Incoming{std::vector<char>(bytes(drawn)), drawn});
      post.recv(peer, i, incoming.back()->data.data(), incoming.back()->data.size());
    }
    if (drawn % 16 == 0) post.box().progress();
  }
  post.wait_well();
  for (const auto& each : incoming) check_letter(each->data, each->seed, member.title);
}

TEST(mail_flood) {
  for_each_reach(3, [](Member& member) {
    Post post(member);
    for (uint64_t again = 0; again < 2; again++) flood(member, post, 120, 100000, again);
  });
}

// As many as a channel holds, and the one that is waited for is the last.
TEST(mail_unmatched) {
  for_each_reach(2, [](Member& member) {
    Post post(member);
    const size_t many = kMessages;
    std::vector<std::vector<int>> letters(many);
    for (size_t i = 0; i < many; i++) {
      // Three quarters are eager.
      letters[i].assign(i % 4 == 0 ? 1000 : 10, member.rank == 0 ? static_cast<int>(i) : -1);
      const size_t bytes = letters[i].size() * sizeof(int);
      if (member.rank == 0) post.send(1, static_cast<int>(i), letters[i].data(), bytes);
    }
    for (size_t i = many; i-- > 0 && member.rank == 1;) {
      post.recv(0, static_cast<int>(i), letters[i].data(), letters[i].size() * sizeof(int));
      post.wait_well();
      check(letters[i].back() == static_cast<int>(i), member.title + ": letter " + std::to_string(i));
    }
    post.wait_well();
  });
}

// As in the engine: collectives in one thread, letters beside them in two others.
TEST(mail_beside_collectives) {
  for (const Reach reach : {Reach::slots, Reach::direct}) {
    run_well({{0, 0}, reach}, [](Member& member) {
      Post post(member);
      std::atomic<bool> ending{false};
      std::thread carrier([&] {
        const Patience sleepy{std::chrono::nanoseconds(0), std::chrono::nanoseconds(0)};
        while (!ending) post.box().wait_for_ring(sleepy, [&] { return ending.load(); });
      });
      std::thread writer([&] {
        for (uint64_t again = 0; again < 5; again++) flood(member, post, 40, 100000, again);
      });
      for (uint64_t i = 0; i < 300; i++) perform(member, random_case(hash(20, i), member.world, 8000));
      writer.join();
      ending = true;
      post.box().wake();
      carrier.join();
    });
  }
}

// ---- failures ----

TEST(mail_sizes_differ) {
  std::vector<char> data[2] = {std::vector<char>(100000), std::vector<char>(100000)};  // outlives both ranks
  for (const Reach reach : {Reach::slots, Reach::direct}) {
    for (const size_t bytes : {10, 50000}) {
      run_well({{0, 0}, reach}, [&](Member& member) {
        Post post(member);
        char* own = data[member.rank].data();
        // Others are in flight both ways, and must be told too.
        const auto more = post.recv(1 - member.rank, 9, own + 60000, 10);
        const auto large = post.send(1 - member.rank, 8, own + 60000, 40000);
        const auto one = member.rank == 0 ? post.send(1, 1, own, bytes) : post.recv(0, 1, own, bytes + 1);
        post.wait_all();
        check_kind(more->outcome, "Mismatch", member.title + ": a receive that waits");
        check_kind(large->outcome, "Mismatch", member.title + ": a send that waits");
        // What was eager is done before anybody can look at it.
        if (member.rank == 1 || bytes > kEagerBytes) check_kind(one->outcome, "Mismatch", member.title);
        for (const size_t size : {bytes, bytes + 1})
          check_says(more->outcome, "s " + std::to_string(size), member.title);
        for (const auto& each : {more, large, one}) check(each->done == 1, member.title + ": told once");
        const Outcome later = outcome_of([&] { member.ccl->barrier(member.turn()); });
        check_kind(later, "Broken", member.title + ": afterwards");
      });
    }
  }
}

TEST(mail_times_out) {
  run_well({{0, 0}, Reach::slots}, [](Member& member) {
    if (member.rank == 1) {
      // Its partner will say what it did last.
      member.ccl->barrier(member.turn());
      while (!member.group().failed()) sleep_ms(1);
      return;
    }
    member.ccl->barrier(member.turn());
    Post post(member);
    std::vector<char> data(10000);
    const auto start = Clock::now();
    const auto recv = post.recv(1, 3, data.data(), 100, 300);
    const auto send = post.send(1, 4, data.data(), 10000, 60000);
    post.wait_all();
    check(seconds_since(start) >= 0.3 && seconds_since(start) < 20, member.title + ": at its deadline");
    check_kind(recv->outcome, "TimedOut", member.title);
    check_kind(send->outcome, "TimedOut", member.title + ": the other letter");
    for (const char* part : {"recv #1 (tag 3)", "rank 1", "timed out after 0.3 s", "its last was barrier #1"})
      check_says(recv->outcome, part, member.title);
  });
}

// Rank 0 waits for rank 1, which waits for rank 2, which is the one to look at.
TEST(mail_says_who_waits_for_whom) {
  run_well({{0, 0, 0}, Reach::slots}, [](Member& member) {
    if (member.rank == 2) {
      while (!member.group().failed()) sleep_ms(1);
      return;
    }
    Post post(member);
    std::vector<char> data(100);
    const auto recv = post.recv(member.rank + 1, 3, data.data(), 100, member.rank == 0 ? 500 : 60000);
    post.wait_all();
    check_kind(recv->outcome, "TimedOut", member.title);
    for (const char* part : {"from rank 1 (", "; it waits for rank 2 (", "it has not called any collective yet"})
      check_says(recv->outcome, part, member.title);
  });
}

TEST(mail_peer_left) {
  for (const bool sends : {true, false}) {
    run_well({{0, 0}, Reach::slots}, [=](Member& member) {
      if (member.rank == 1) return;
      Post post(member);
      std::vector<char> data(10000);
      const auto start = Clock::now();
      const auto result = sends ? post.send(1, 3, data.data(), 10000) : post.recv(1, 3, data.data(), 10000);
      post.wait_all();
      check(seconds_since(start) < 20, member.title + ": long before its deadline");
      check_kind(result->outcome, "PeerLost", member.title);
      check_says(result->outcome, "has left the group", member.title);
    });
  }
}

// What was sent before its sender left is received, and who received it may leave before its sender looks.
TEST(mail_last_words) {
  for (int again = 0; again < 200 && lost() == 0; again++) {
    run_well({{0, 0}, again % 2 == 0 ? Reach::direct : Reach::slots}, [=](Member& member) {
      Post post(member);
      const size_t bytes = again % 4 < 2 ? 100 : 5000;
      std::vector<char> data = letter(1, bytes);
      // Whoever is here first looks again and again, so that the other leaves between two glances.
      const std::chrono::microseconds late(again * 37 % 500);
      if (member.rank == again % 3 % 2) std::this_thread::sleep_for(late);
      if (member.rank == 0) post.send(1, 1, data.data(), bytes);
      if (member.rank == 1) std::fill(data.begin(), data.end(), 0), post.recv(0, 1, data.data(), bytes);
      while (post.open()) post.box().progress();
      post.wait_well();
      check_letter(data, 1, member.title);
    });
  }
}

// Whoever sends what cannot be read harms the group, and every letter must be told.
TEST(mail_unreadable) {
  void* memory = mmap(nullptr, 100000, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  run_well({{0, 0}, Reach::kernel}, [=](Member& member) {
    Post post(member);
    std::vector<char> data(100000);
    const size_t bytes = data.size();
    char* in = data.data();
    const auto result = member.rank == 0 ? post.send(1, 1, memory, bytes) : post.recv(0, 1, in, bytes);
    post.wait_all();
    check_kind(result->outcome, "PeerLost", member.title);
    check_says(result->outcome, "rank 0 (process ", member.title);
    check_says(result->outcome, "was lost while it sent: cannot read the memory of process ", member.title);
  });
  munmap(memory, 100000);
}

TEST(mail_fail_all) {
  run_well({{0, 0}, Reach::slots}, [](Member& member) {
    Post post(member);
    std::vector<char> data(10000);
    const auto recv = post.recv(1 - member.rank, 3, data.data(), 10000);
    const auto send = post.send(1 - member.rank, 4, data.data(), 10000);
    check(!post.box().idle(), member.title + ": not idle");
    post.box().fail_all(std::make_exception_ptr(Broken("taken down")));
    check_kind(recv->outcome, "Broken", member.title);
    check_kind(send->outcome, "Broken", member.title);
    check(post.box().idle() && !post.open(), member.title + ": nothing is left");
  });
}

}  // namespace
}  // namespace plough
