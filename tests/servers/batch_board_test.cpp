// Tests which batch each asynchronous worker runs next: the contract of BatchBoard.
#include "engine/runtime/comm/batch_board.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <memory>
#include <mutex>
#include <random>
#include <thread>
#include <vector>

using namespace trainctl;

namespace {

std::unique_ptr<BatchBoard> board_of(int workers, int64_t end, bool rebalance = false, int64_t first = 0) {
  auto board = std::make_unique<BatchBoard>();
  board->prepare(workers, first, end, rebalance);
  return board;
}

/// Claims batches for a worker until there are none for it at the moment, and returns them.
std::vector<int64_t> claims(BatchBoard& board, int worker, bool finish = true) {
  std::vector<int64_t> all;
  for (int64_t batch = board.claim(worker); batch >= 0; batch = board.claim(worker)) {
    all.push_back(batch);
    if (finish) board.finished(worker, batch, 0);
  }
  return all;
}

}  // namespace

TEST_CASE("each worker has every N-th batch, and the end is said once all are finished") {
  const auto board = board_of(3, 10);
  CHECK(claims(*board, 1) == std::vector<int64_t>{1, 4, 7});
  CHECK(board->claim(1) == BatchBoard::kNoneNow);
  CHECK(claims(*board, 0) == std::vector<int64_t>{0, 3, 6, 9});
  CHECK(claims(*board, 2) == std::vector<int64_t>{2, 5, 8});
  CHECK(board->claim(1) == BatchBoard::kEnd);
  CHECK(board->finished() == 10);
  CHECK(board->finished_by(0) == 4);
}

TEST_CASE("a run that resumes at a step begins with its batch") {
  const auto board = board_of(2, 9, false, 5);
  CHECK(claims(*board, 0) == std::vector<int64_t>{5, 7});
  CHECK(claims(*board, 1) == std::vector<int64_t>{6, 8});
  CHECK(board->round(5) == 0);
  CHECK(board->round(8) == 1);
}

TEST_CASE("with rebalance a worker gets the lowest batch that nobody has") {
  const auto board = board_of(3, 6, true);
  CHECK(board->claim(2) == 0);
  CHECK(board->claim(2) == 1);
  CHECK(board->claim(0) == 2);
  CHECK(claims(*board, 1) == std::vector<int64_t>{3, 4, 5});
}

TEST_CASE("batches that a dead worker claimed but did not finish, and its share, go to the others") {
  const auto board = board_of(2, 8);
  REQUIRE(board->claim(0) == 0);
  REQUIRE(board->claim(0) == 2);
  board->finished(0, 0, 0);
  board->set_gone(0);
  std::vector<int64_t> rest = claims(*board, 1);
  CHECK(rest.front() == 2);
  std::sort(rest.begin(), rest.end());
  CHECK(rest == std::vector<int64_t>{1, 2, 3, 4, 5, 6, 7});
  CHECK(board->claim(1) == BatchBoard::kEnd);
}

TEST_CASE("a worker that replaces a dead one takes over its share") {
  const auto board = board_of(2, 8);
  board->set_gone(0);
  CHECK(board->claim(1) == 0);
  std::vector<int64_t> left;
  board->join(0, [&](int64_t batch) { left.push_back(batch); });
  CHECK(left.empty());
  CHECK(claims(*board, 0) == std::vector<int64_t>{2, 4, 6});
}

TEST_CASE("a worker that joins runs what the dead one had claimed and nobody took back") {
  const auto board = board_of(2, 8);
  REQUIRE(board->claim(0) == 0);
  REQUIRE(board->claim(0) == 2);
  board->set_gone(0);
  CHECK(board->claim(1) == 0);
  std::vector<int64_t> left;
  board->join(0, [&](int64_t batch) { left.push_back(batch); });
  CHECK(left == std::vector<int64_t>{2});
  board->finished(0, 2, 0);
  CHECK(claims(*board, 0) == std::vector<int64_t>{4, 6});
}

TEST_CASE("every batch is finished once by workers that claim at random and die at random") {
  for (unsigned seed = 0; seed < 40; ++seed) {
    CAPTURE(seed);
    constexpr int kWorkers = 5;
    constexpr int64_t kBatches = 203;
    const auto board = board_of(kWorkers, kBatches, seed % 2 == 0);
    std::mutex mutex;
    std::vector<int64_t> done;
    const auto work = [&](int worker) {
      std::mt19937 random(seed * 100 + static_cast<unsigned>(worker));
      std::vector<int64_t> claimed;
      for (;;) {
        const int64_t batch = claimed.size() < 4 ? board->claim(worker) : BatchBoard::kNoneNow;
        if (batch == BatchBoard::kEnd) return;
        if (batch >= 0) claimed.push_back(batch);
        if (batch >= 0 && random() % 3 != 0) continue;
        if (worker > 0 && random() % 40 == 0) return board->set_gone(worker);
        if (claimed.empty()) {
          std::this_thread::yield();
          continue;
        }
        board->finished(worker, claimed.front(), 0);
        const std::lock_guard lock(mutex);
        done.push_back(claimed.front());
        claimed.erase(claimed.begin());
      }
    };
    std::vector<std::thread> threads;
    for (int worker = 0; worker < kWorkers; ++worker) threads.emplace_back(work, worker);
    for (std::thread& thread : threads) thread.join();
    std::sort(done.begin(), done.end());
    REQUIRE(done.size() == kBatches);
    for (int64_t i = 0; i < kBatches; ++i) CHECK(done[static_cast<size_t>(i)] == i);
  }
}
