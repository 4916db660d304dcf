// Every collective against a plain reference: on one host and on several, by every way across.
#include <algorithm>
#include <random>
#include <thread>

#include "cases.h"

namespace plough {
namespace {

const std::vector<std::vector<int>> kOneHost = {{0}, {0, 0}, {0, 0, 0}, {0, 0, 0, 0, 0}};
// 2x2, 3x1, and 3+1+2 ranks, numbered across the hosts.
const std::vector<std::vector<int>> kSeveralHosts = {
    {0, 1, 0, 1}, {0, 0, 1, 1}, {0, 1, 2}, {0, 1, 2, 0, 2, 0}};

// Nothing, a little, around the largest that goes in one step, several windows, several steps of a leader.
constexpr size_t kSizes[] = {0, 8, 40, 1016, 1024, 1032, 2040, 2048, 2056, 4096, 9000, 30000};

// Every operation with every size; the rest is drawn.
void every_size(Member& member) {
  uint64_t seed = 0;
  for (int op = 1; op <= 9; op++) {
    for (const size_t bytes : kSizes) {
      for (int again = 0; again < (op == 9 ? 1 : 2); again++) {
        // Draw until it is the operation's turn: types, roots and the rest stay as random as elsewhere.
        Case one = random_case(seed++, member.world, 100);
        while (static_cast<int>(one.op) != op) one = random_case(seed++, member.world, 100);
        const bool whole = one.op == Op::allreduce || one.op == Op::reduce || one.op == Op::broadcast;
        const size_t parts = whole ? 1 : static_cast<size_t>(member.world);
        one.count = (bytes / size_of(one.dtype) + parts - 1) / parts;
        perform(member, one);
      }
    }
  }
}

void every_size(const std::vector<std::vector<int>>& shapes, Reach reach, int workers = 1) {
  for (const auto& shape : shapes) {
    Setup setup{shape, reach};
    setup.tuning.workers = workers;
    run_well(setup, [](Member& member) { every_size(member); });
  }
}

TEST(one_host_slots) { every_size(kOneHost, Reach::slots); }
TEST(one_host_direct) { every_size(kOneHost, Reach::direct); }
TEST(one_host_kernel) { every_size(kOneHost, Reach::kernel); }
TEST(several_hosts_slots) { every_size(kSeveralHosts, Reach::slots); }
TEST(several_hosts_direct) { every_size(kSeveralHosts, Reach::direct); }
TEST(workers_direct) { every_size({{0, 0, 0}, {0, 1, 0, 1}}, Reach::direct, 3); }
TEST(workers_kernel) { every_size({{0, 0}}, Reach::kernel, 2); }

// Many in a row, of all kinds, at an uneven pace: what one leaves behind must not reach the next.
void at_random(Member& member, uint64_t seed, int rounds, size_t most_bytes) {
  std::minstd_rand pace(static_cast<unsigned>(member.rank + 1));
  for (int i = 0; i < rounds && lost() == 0; i++) {
    const unsigned drawn = static_cast<unsigned>(pace());
    if (drawn % 8 == 0) std::this_thread::yield();
    if (drawn % 64 == 1) std::this_thread::sleep_for(std::chrono::microseconds(drawn / 64 % 300));
    perform(member, random_case(hash(seed, static_cast<uint64_t>(i)), member.world, most_bytes));
  }
}

TEST(random_slots) {
  run_well({{0, 0, 0}, Reach::slots}, [](Member& member) { at_random(member, 1, 3000, 12000); });
}
TEST(random_direct) {
  run_well({{0, 0, 0}, Reach::direct}, [](Member& member) { at_random(member, 2, 3000, 12000); });
}
TEST(random_hosts) {
  run_well({{0, 1, 0, 1, 0}, Reach::slots}, [](Member& member) { at_random(member, 3, 500, 12000); });
  run_well({{0, 1, 2, 0, 2, 0}, Reach::direct}, [](Member& member) { at_random(member, 4, 500, 12000); });
}

// Asleep at once, so that nobody may miss being woken.
TEST(random_asleep) {
  Setup setup{{0, 0, 0}, Reach::direct};
  setup.tuning.patience = {std::chrono::nanoseconds(0), std::chrono::nanoseconds(0)};
  run_well(setup, [](Member& member) { at_random(member, 5, 1000, 4000); });
}

// As it is used, with sizes to match.
TEST(default_tuning) {
  for (const Reach reach : {Reach::slots, Reach::direct}) {
    Setup setup{{0, 0, 0}, reach};
    setup.tuning = Tuning();
    setup.slot_bytes = 256 << 10;
    run_well(setup, [](Member& member) { at_random(member, 6, 40, 1 << 20); });
  }
}

TEST(several_groups_at_once) {
  std::vector<std::thread> threads;
  for (int i = 0; i < 3; i++) {
    threads.emplace_back([i] {
      const Setup setup{{0, 0}, i == 0 ? Reach::slots : Reach::direct};
      run_well(setup, [i](Member& member) { at_random(member, static_cast<uint64_t>(10 + i), 700, 8000); });
    });
  }
  for (std::thread& thread : threads) thread.join();
}

// More ranks than a slot of the size that was asked for has lines.
TEST(many_ranks) {
  const Setup setup{std::vector<int>(70, 0), Reach::slots};
  run_well(setup, [](Member& member) {
    for (const size_t count : {1, 40})
      for (const Op op : {Op::allreduce, Op::reduce_scatter, Op::alltoall, Op::allgather}) {
        Case one;
        one.op = op, one.dtype = DType::i64, one.redop = RedOp::sum;
        one.count = op == Op::allreduce ? 70 * count : count;
        perform(member, one);
      }
  });
}

// Beyond what leaders reduce at once between hosts.
TEST(parts_between_hosts) {
  Setup setup{{0, 1, 0}, Reach::direct};
  setup.tuning = Tuning();
  setup.slot_bytes = 256 << 10;
  run_well(setup, [](Member& member) {
    const size_t count = ((16 << 20) + 4096) / sizeof(float);
    std::vector<float> data(count);
    const auto factor = static_cast<size_t>(member.rank + 1);
    for (size_t i = 0; i < count; i++) data[i] = static_cast<float>(i % 1000 * factor);
    std::vector<float> root_only(member.rank == 2 ? count : 0);
    member.ccl->reduce(member.turn(), data.data(), root_only.data(), count, {DType::f32, RedOp::sum}, 2);
    member.ccl->allreduce(member.turn(), data.data(), data.data(), count, {DType::f32, RedOp::sum});
    size_t wrong = 0;
    for (size_t i = 0; i < count; i++) wrong += data[i] != static_cast<float>(i % 1000 * 6);
    check(wrong == 0, member.title + ": " + std::to_string(wrong) + " elements of the sum are wrong");
    check(member.rank != 2 || root_only == data, member.title + ": reduce and allreduce differ");
  });
}

// Rounding depends on the order of the sum: all ranks must have used the same.
TEST(same_bits_everywhere) {
  for (const auto& shape : {std::vector<int>{0, 0, 0, 0, 0}, std::vector<int>{0, 1, 2, 0, 2, 0}}) {
    for (const Reach reach : {Reach::slots, Reach::direct}) {
      const size_t count = 3000;
      std::vector<std::vector<float>> results(shape.size(), std::vector<float>(count));
      run_well({shape, reach}, [&](Member& member) {
        std::vector<float>& data = results[static_cast<size_t>(member.rank)];
        std::minstd_rand draw(static_cast<unsigned>(member.rank + 1));
        for (float& value : data) value = static_cast<float>(draw()) * 1e-3F;
        member.ccl->allreduce(member.turn(), data.data(), data.data(), count, {DType::f32, RedOp::avg});
      });
      const std::string title = name_of(reach);
      for (const auto& result : results) check(result == results[0], title + ": bits differ");
    }
  }
}

}  // namespace
}  // namespace plough
