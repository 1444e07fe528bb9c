// A queue in which clients take turns: who puts in many does not hold up the others.
#pragma once

#include <cstdint>
#include <deque>
#include <iterator>
#include <map>
#include <string>
#include <utility>
#include <vector>

namespace attnres {

template <class Item>
class FairQueue {
 public:
  void push(const std::string& client, Item item) {
    waiting_[client].push_back(std::move(item));
    ++size_;
  }

  // The oldest of the client whose turn it is; there must be one.
  Item pop() {
    auto client = waiting_.upper_bound(last_);
    if (client == waiting_.end()) client = waiting_.begin();
    last_ = client->first;
    Item item = std::move(client->second.front());
    client->second.pop_front();
    if (client->second.empty()) waiting_.erase(client);
    --size_;
    return item;
  }

  // Takes out those that `wanted` is true of.
  template <class F>
  std::vector<Item> take_if(const F& wanted) {
    std::vector<Item> taken;
    taken.reserve(size_);  // then nothing is lost where memory is short
    for (auto client = waiting_.begin(); client != waiting_.end();) {
      std::deque<Item>& items = client->second;
      auto kept = items.begin();
      for (Item& item : items) {
        if (wanted(item)) {
          taken.push_back(std::move(item));
        } else if (Item& place = *kept++; &place != &item) {
          place = std::move(item);
        }
      }
      items.erase(kept, items.end());
      client = items.empty() ? waiting_.erase(client) : std::next(client);
    }
    size_ -= static_cast<int64_t>(taken.size());
    return taken;
  }

  int64_t size() const { return size_; }

 private:
  std::map<std::string, std::deque<Item>> waiting_;  // by client; none is empty
  std::string last_;                                 // whose turn it was
  int64_t size_ = 0;
};

}  // namespace attnres
