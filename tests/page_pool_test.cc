// Page pool of the replay: every page is free, owned once, or held by one prefix node; prefixes are shared, retained and evicted.
#include "tools/page_pool.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <set>

#include "girih/error.h"

namespace girih::tools {
namespace {

using Pages = std::vector<std::int32_t>;

TEST(PagePool, HandsOutEachPageOnce) {
  PagePool pool(10, 16);
  EXPECT_EQ(pool.pages_for(0), 0);
  EXPECT_EQ(pool.pages_for(17), 2);
  Pages a, b;
  pool.allocate(6, a);
  pool.allocate(4, b);
  EXPECT_EQ(pool.available(), 0);
  std::set<std::int32_t> all(a.begin(), a.end());
  all.insert(b.begin(), b.end());
  EXPECT_EQ(all.size(), 10U);
  EXPECT_EQ(*all.begin(), 0);
  EXPECT_EQ(*all.rbegin(), 9);
  EXPECT_THROW(pool.allocate(1, a), Error);
  EXPECT_EQ(a.size(), 6U);
  pool.free(b);
  EXPECT_EQ(pool.available(), 4);
}

TEST(PagePool, SharesAndRetainsPrefixes) {
  PagePool pool(8, 256);
  Pages pages;
  pool.allocate(4, pages);
  const std::int32_t first = pool.insert(PagePool::kRoot, 7, std::span<const std::int32_t>(pages).first(2));
  const std::int32_t second = pool.insert(first, 9, std::span<const std::int32_t>(pages).last(2));
  EXPECT_EQ(pool.find(PagePool::kRoot, 7), first);
  EXPECT_EQ(pool.find(first, 9), second);
  EXPECT_EQ(pool.find(PagePool::kRoot, 9), PagePool::kNone);
  pool.acquire(first);
  EXPECT_EQ(pool.users(first), 2);
  pool.release(second);
  pool.release(first);
  EXPECT_EQ(pool.used(), 2);  // `first` still has a user
  pool.release(first);
  EXPECT_EQ(pool.used(), 0);
  EXPECT_EQ(pool.find(first, 9), second);  // retained
}

TEST(PagePool, EvictsLeavesLeastRecentlyUsedFirst) {
  PagePool pool(4, 512);
  Pages pages;
  pool.allocate(3, pages);
  const std::int32_t a = pool.insert(PagePool::kRoot, 1, Pages{pages[0]});
  const std::int32_t below_a = pool.insert(a, 2, Pages{pages[1]});
  const std::int32_t b = pool.insert(PagePool::kRoot, 3, Pages{pages[2]});
  pool.release(below_a);
  pool.release(a);
  pool.release(b);
  Pages taken;
  pool.allocate(2, taken);  // one free page, then the oldest leaf: below_a, not its parent
  EXPECT_EQ(pool.find(a, 2), PagePool::kNone);
  EXPECT_EQ(pool.find(PagePool::kRoot, 1), a);
  pool.allocate(1, taken);  // a was used before b
  EXPECT_EQ(pool.find(PagePool::kRoot, 1), PagePool::kNone);
  EXPECT_EQ(pool.find(PagePool::kRoot, 3), b);
  pool.acquire(b);
  EXPECT_THROW(pool.allocate(1, taken), Error);
}

TEST(PagePool, InsertOfAKnownBlockKeepsTheFirst) {
  PagePool pool(4, 512);
  Pages x, y;
  pool.allocate(1, x);
  pool.allocate(1, y);
  const std::int32_t node = pool.insert(PagePool::kRoot, 5, x);
  EXPECT_EQ(pool.insert(PagePool::kRoot, 5, y), node);
  EXPECT_EQ(pool.users(node), 2);
  EXPECT_EQ(pool.pages(node)[0], x[0]);
  EXPECT_EQ(pool.available(), 3);
}

// Random operations against the invariant: no page is in two places, and none is lost.
TEST(PagePool, LosesNoPage) {
  std::mt19937 random(3);
  PagePool pool(24, 512);
  struct Holder {
    std::vector<std::int32_t> path;
    Pages own;
  };
  std::vector<Holder> holders;
  for (int round = 0; round < 4000; ++round) {
    if (holders.size() < 6 && random() % 2 == 0) {
      Holder holder;
      std::int32_t parent = PagePool::kRoot;
      for (std::uint32_t depth = 0; depth < 1 + random() % 3; ++depth) {
        const std::int64_t hash = random() % 2;
        std::int32_t node = pool.find(parent, hash);
        if (node != PagePool::kNone) {
          pool.acquire(node);
        } else {
          Pages page;
          if (pool.available() == 0) break;
          pool.allocate(1, page);
          node = pool.insert(parent, hash, page);
        }
        holder.path.push_back(node);
        parent = node;
      }
      pool.allocate(std::min<std::int64_t>(pool.available(), random() % 4), holder.own);
      holders.push_back(holder);
    } else if (!holders.empty()) {
      std::swap(holders[random() % holders.size()], holders.back());
      pool.free(holders.back().own);
      for (auto node = holders.back().path.rbegin(); node != holders.back().path.rend(); ++node) pool.release(*node);
      holders.pop_back();
    }
    std::set<std::int32_t> held;
    std::set<std::int32_t> nodes;
    std::size_t count = 0;
    for (const Holder& holder : holders) {
      held.insert(holder.own.begin(), holder.own.end());
      count += holder.own.size();
      for (std::int32_t node : holder.path) {
        if (!nodes.insert(node).second) continue;
        held.insert(pool.pages(node).begin(), pool.pages(node).end());
        count += pool.pages(node).size();
      }
    }
    ASSERT_EQ(held.size(), count);
    ASSERT_EQ(pool.used(), static_cast<std::int64_t>(count));
  }
}

}  // namespace
}  // namespace girih::tools
