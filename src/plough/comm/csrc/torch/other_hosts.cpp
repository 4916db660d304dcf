#include "other_hosts.h"

#include <algorithm>
#include <chrono>
#include <future>
#include <memory>
#include <thread>

namespace plough {
namespace {

constexpr auto kLook = std::chrono::milliseconds(20);
constexpr auto kAnswer = std::chrono::milliseconds(400);
constexpr int kLooks = 15;
constexpr int kLooksForWaiting = 10;  // fewer: all who wait have timed out at about the same time

std::string text_of(const std::vector<uint8_t>& bytes) { return {bytes.begin(), bytes.end()}; }

std::vector<uint8_t> bytes_of(const std::string& text) { return {text.begin(), text.end()}; }

std::string word_of_failure(c10d::Store& store, int looks) {
  for (int i = 0; i < looks; i++) {
    if (store.check({"failure"})) return text_of(store.get("failure"));
    std::this_thread::sleep_for(kLook);
  }
  return "";
}

std::string place_of(int rank) { return "waits/" + std::to_string(rank); }

}  // namespace

void OtherHosts::tell(const std::string& what) const {
  // In a thread of its own: the store may be on the very host that was lost.
  const auto store = store_;
  std::thread([store, what] {
    try {
      store->compareSet("failure", {}, bytes_of(what));
    } catch (...) {
      // The others will notice by their own timeouts.
    }
  }).detach();
}

// As above, but we wait for it, for so long.
std::string OtherHosts::ask(Question question) const {
  const auto store = store_;
  auto answer = std::make_shared<std::promise<std::string>>();
  auto future = answer->get_future();
  std::thread([store, answer, question] {
    std::string text;
    try {
      text = question(*store);
    } catch (...) {
      // No answer.
    }
    answer->set_value(text);
  }).detach();
  return future.wait_for(kAnswer) == std::future_status::ready ? future.get() : "";
}

std::string OtherHosts::explain(const std::string& what) const {
  const std::string known = ask([](c10d::Store& store) { return word_of_failure(store, kLooks); });
  return known.empty() || known == what ? what : known + " (here: " + what + ")";
}

std::string OtherHosts::explain_wait(const std::string& what, int peer) const {
  const auto names = names_;
  const std::string known = ask([names, peer, rank = rank_](c10d::Store& store) -> std::string {
    store.set(place_of(rank), bytes_of(std::to_string(peer)));
    const std::string word = word_of_failure(store, kLooksForWaiting);
    if (!word.empty() || peer < 0) return word;
    std::string trail;
    std::vector<int> seen{rank, peer};
    for (int last = peer; store.check({place_of(last)});) {
      last = std::stoi(text_of(store.get(place_of(last))));
      if (last < 0) break;
      const bool again = std::find(seen.begin(), seen.end(), last) != seen.end();
      trail += ", which waits for " + names[last];
      if (again) break;
      seen.push_back(last);
    }
    return trail;
  });
  if (known.empty() || known == what) return what;
  return known[0] == ',' ? what + known : known + " (here: " + what + ")";
}

c10::intrusive_ptr<c10d::Backend> OtherHosts::messages() const {
  std::lock_guard<std::mutex> lock(mutex_);
  return flat_;
}

void OtherHosts::abandon() {
  c10::intrusive_ptr<c10d::Backend> last;
  std::lock_guard<std::mutex> lock(mutex_);
  last.swap(flat_);
}

}  // namespace plough
