// Page pool with a prefix tree (page_pool.h).
#include "tools/page_pool.h"

#include <fmt/format.h>

#include "girih/error.h"

namespace girih::tools {

PagePool::PagePool(std::int64_t num_pages, std::int64_t page_size) : num_pages_(num_pages), page_size_(page_size) {
  free_.reserve(num_pages);
  for (std::int64_t i = num_pages; i-- > 0;) free_.push_back(static_cast<std::int32_t>(i));  // the lowest id is handed out first
}

void PagePool::allocate(std::int64_t count, std::vector<std::int32_t>& pages) {
  if (count > available()) {
    throw Error(Code::out_of_memory,
                fmt::format("page_pool.allocate: count={} > available={} of {} pages", count, available(), num_pages_));
  }
  while (static_cast<std::int64_t>(free_.size()) < count) evict_one();
  pages.insert(pages.end(), free_.rbegin(), free_.rbegin() + count);
  free_.resize(free_.size() - count);
}

void PagePool::free(std::span<const std::int32_t> pages) { free_.insert(free_.end(), pages.rbegin(), pages.rend()); }

std::int32_t PagePool::find(std::int32_t parent, std::int64_t hash) const {
  const auto it = by_key_.find({parent, hash});
  return it == by_key_.end() ? kNone : it->second;
}

void PagePool::acquire(std::int32_t node) {
  Node& n = nodes_[node];
  if (n.users++ == 0) {
    unused_node_pages_ -= static_cast<std::int64_t>(n.pages.size());
    evictable_.erase({n.last_use, node});
  }
}

void PagePool::release(std::int32_t node) {
  Node& n = nodes_[node];
  if (--n.users > 0) return;
  unused_node_pages_ += static_cast<std::int64_t>(n.pages.size());
  n.last_use = ++clock_;
  note_if_evictable(node);
}

std::int32_t PagePool::insert(std::int32_t parent, std::int64_t hash, std::span<const std::int32_t> pages) {
  if (const std::int32_t existing = find(parent, hash); existing != kNone) {
    acquire(existing);
    free(pages);
    return existing;
  }
  std::int32_t node = static_cast<std::int32_t>(nodes_.size());
  if (free_nodes_.empty()) {
    nodes_.emplace_back();
  } else {
    node = free_nodes_.back();
    free_nodes_.pop_back();
  }
  nodes_[node] = Node{.parent = parent, .hash = hash, .users = 1, .children = 0, .last_use = 0, .pages = {pages.begin(), pages.end()}};
  by_key_[{parent, hash}] = node;
  if (parent != kRoot) ++nodes_[parent].children;
  return node;
}

void PagePool::note_if_evictable(std::int32_t node) {
  if (nodes_[node].users == 0 && nodes_[node].children == 0) evictable_.insert({nodes_[node].last_use, node});
}

void PagePool::evict_one() {
  // A user of a node uses its ancestors, so below a node without users there are none: whatever is unused can be reached leaf by leaf.
  const std::int32_t node = evictable_.begin()->second;
  evictable_.erase(evictable_.begin());
  Node& n = nodes_[node];
  unused_node_pages_ -= static_cast<std::int64_t>(n.pages.size());
  free(n.pages);
  n.pages.clear();
  by_key_.erase({n.parent, n.hash});
  free_nodes_.push_back(node);
  if (n.parent != kRoot) {
    --nodes_[n.parent].children;
    note_if_evictable(n.parent);
  }
}

}  // namespace girih::tools
