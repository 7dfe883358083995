#include "engine/base/small_blocks.h"

#include <doctest/doctest.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <thread>
#include <vector>

namespace trainctl {
namespace {

/// Returns `count` strings, each with its own length and contents.
std::vector<std::unique_ptr<std::string>> strings(size_t count) {
  std::vector<std::unique_ptr<std::string>> all;
  for (size_t i = 0; i < count; ++i) all.push_back(std::make_unique<std::string>(i, static_cast<char>('a' + i % 26)));
  return all;
}

bool are_whole(const std::vector<std::unique_ptr<std::string>>& all) {
  for (size_t i = 0; i < all.size(); ++i)
    if (*all[i] != std::string(i, static_cast<char>('a' + i % 26))) return false;
  return true;
}

TEST_CASE("blocks of all sizes keep their contents beside each other, from before shelves are asked for and after") {
  auto before = strings(1200);
  keep_small_blocks();
  auto after = strings(1200);
  for (size_t i = 0; i < after.size(); i += 2) after[i] = nullptr;
  auto again = strings(1200);
  CHECK(are_whole(before));
  CHECK(are_whole(again));
  before.clear();
  for (size_t i = 1; i < after.size(); i += 2) CHECK(*after[i] == std::string(i, static_cast<char>('a' + i % 26)));
}

TEST_CASE("blocks are aligned for every type") {
  keep_small_blocks();
  for (size_t size = 0; size < 2000; ++size) {
    void* block = operator new(size);
    CHECK(reinterpret_cast<uintptr_t>(block) % alignof(std::max_align_t) == 0);
    operator delete(block);
  }
}

TEST_CASE("a thread may free what another has allocated") {
  keep_small_blocks();
  std::vector<std::vector<std::unique_ptr<std::string>>> made(4);
  std::vector<std::thread> threads;
  for (auto& all : made) threads.emplace_back([&all] { all = strings(600); });
  for (std::thread& thread : threads) thread.join();
  threads.clear();
  for (auto& all : made) CHECK(are_whole(all));
  for (auto& all : made)
    threads.emplace_back([&all] {
      all = strings(600);
      all.resize(300);
    });
  for (std::thread& thread : threads) thread.join();
  for (auto& all : made) CHECK(are_whole(all));
}

}  // namespace
}  // namespace trainctl
