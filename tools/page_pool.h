// The pages of a KV cache: which are free, which a request owns, which hold a shared prefix. Ids only; the data lives with the engine.
//
// Shared prefixes form a tree: a node is one block of kPrefixBlock tokens below its parent, keyed by the block's hash id, and owns that
// block's pages. Requests acquire a path of nodes. A node that no request uses any more is retained, and evicted (least recently used
// leaf first) when an allocation finds no free page.
#pragma once

#include <cstdint>
#include <map>
#include <set>
#include <span>
#include <utility>
#include <vector>

namespace girih::tools {

class PagePool {
 public:
  static constexpr std::int32_t kRoot = -1;  ///< the parent of a first block
  static constexpr std::int32_t kNone = -2;

  PagePool(std::int64_t num_pages, std::int64_t page_size);

  std::int64_t num_pages() const { return num_pages_; }
  std::int64_t page_size() const { return page_size_; }
  std::int64_t pages_for(std::int64_t tokens) const { return (tokens + page_size_ - 1) / page_size_; }
  /// Pages that allocate() can hand out: free, or retained by nodes that no request uses.
  std::int64_t available() const { return static_cast<std::int64_t>(free_.size()) + unused_node_pages_; }
  /// Pages in use by requests, each counted once however many share it.
  std::int64_t used() const { return num_pages_ - available(); }

  /// Appends `count` pages to `pages`. Throws out_of_memory, taking none, if fewer are available.
  void allocate(std::int64_t count, std::vector<std::int32_t>& pages);
  void free(std::span<const std::int32_t> pages);

  /// The node of block `hash` below `parent`, or kNone.
  std::int32_t find(std::int32_t parent, std::int64_t hash) const;
  /// Counts a user of the node, which keeps it and its pages. Ancestors must be acquired too.
  void acquire(std::int32_t node);
  void release(std::int32_t node);
  /// Makes a node of pages that hold a whole block, now owned by the tree, and acquires it for the caller. If the node exists already,
  /// acquires that one and frees `pages`: the caller then uses the node's.
  std::int32_t insert(std::int32_t parent, std::int64_t hash, std::span<const std::int32_t> pages);
  std::span<const std::int32_t> pages(std::int32_t node) const { return nodes_[node].pages; }
  std::int64_t users(std::int32_t node) const { return nodes_[node].users; }

 private:
  struct Node {
    std::int32_t parent = kRoot;
    std::int64_t hash = 0;
    std::int64_t users = 0;
    std::int64_t children = 0;
    std::int64_t last_use = 0;
    std::vector<std::int32_t> pages;
  };

  void note_if_evictable(std::int32_t node);
  void evict_one();

  std::int64_t num_pages_;
  std::int64_t page_size_;
  std::vector<std::int32_t> free_;
  std::vector<Node> nodes_;
  std::vector<std::int32_t> free_nodes_;
  std::map<std::pair<std::int32_t, std::int64_t>, std::int32_t> by_key_;  // (parent, hash) -> node
  std::set<std::pair<std::int64_t, std::int32_t>> evictable_;             // (last use, node): leaves without users
  std::int64_t unused_node_pages_ = 0;
  std::int64_t clock_ = 0;
};

}  // namespace girih::tools
