// Tests of the decisions of SaveBoard, with ranks as threads that are at different steps.
#include "engine/runtime/comm/save_board.h"

#include <doctest/doctest.h>

#include <memory>
#include <random>
#include <thread>
#include <vector>

using namespace trainctl;

namespace {

const auto never = [](int64_t) { return false; };
const auto always = [](int64_t) { return true; };

/// Ranks that take steps, and a writer. A rank is at most kLead steps ahead of the slowest.
class Run {
 public:
  static constexpr int64_t kLead = 20;

  Run(int ranks, int64_t steps) : steps_(steps), at_(static_cast<size_t>(ranks)), copied_(at_.size()) {
    for (size_t rank = 0; rank < at_.size(); ++rank) saved_.emplace_back(static_cast<size_t>(steps) + 1, char{0});
  }

  void operator()() {
    std::vector<std::thread> threads;
    for (size_t rank = 0; rank < at_.size(); ++rank) threads.emplace_back([this, rank] { train(rank); });
    std::thread writer([this] { write(); });
    for (std::thread& thread : threads) thread.join();
    done_ = true;
    writer.join();
  }

  SaveBoard board;
  std::atomic<int> overlaps{0}, torn{0};
  const std::vector<std::vector<char>>& saved() const { return saved_; }
  std::vector<int64_t> written;

 private:
  void train(size_t rank) {
    std::mt19937 random(static_cast<unsigned>(rank));
    uint64_t mine = 0;
    for (int64_t step = 1; step <= steps_; ++step) {
      while (slowest() + kLead < step || (step % 50 == 0 && is_behind(step))) std::this_thread::yield();
      // Each rank has its own clock, so a save may be due for one rank and not for another.
      const bool saves = board.saves_before(step, [&](int64_t last) { return step > last + 3 && random() % 4 == 0; });
      saved_[rank][static_cast<size_t>(step)] = saves ? 1 : 0;
      if (saves) {
        if (board.written() + board.failed() != mine || board.saving() != step) ++overlaps;
        ++mine;
        if (rank == 0) {
          SaveBoard::Position reported;
          reported.steps = step;
          reported.loss_sum = static_cast<double>(2 * step);
          board.report_position(step, reported);
        }
        copied_[rank].store(step, std::memory_order_release);
      }
      at_[rank] = step;
    }
  }

  /// Returns whether the writer still has a save of an earlier step.
  bool is_behind(int64_t step) const {
    const int64_t saving = board.saving();
    return saving >= 0 && saving < step;
  }

  int64_t slowest() const {
    int64_t least = steps_;
    for (const std::atomic<int64_t>& at : at_) least = std::min(least, at.load());
    return least;
  }

  bool is_ready(int64_t step) const {
    if (step < 0 || !board.is_reported(step)) return false;
    for (const std::atomic<int64_t>& copied : copied_)
      if (copied.load(std::memory_order_acquire) != step) return false;
    return true;
  }

  void write() {
    while (!done_ || is_ready(board.saving())) {
      const int64_t step = board.saving();
      if (!is_ready(step)) {
        std::this_thread::yield();
        continue;
      }
      if (board.position().steps != step || board.position().loss_sum != static_cast<double>(2 * step)) ++torn;
      if (board.saving() != step) ++overlaps;
      written.push_back(step);
      board.finished(written.size() % 5 != 0);  // some are given up
    }
  }

  const int64_t steps_;
  std::vector<std::atomic<int64_t>> at_, copied_;
  std::vector<std::vector<char>> saved_;
  std::atomic<bool> done_{false};
};

}  // namespace

TEST_CASE("all ranks save before the same steps, one save at a time, whatever each one's clock says") {
  for (const int ranks : {1, 2, 7}) {
    CAPTURE(ranks);
    Run run(ranks, 3000);
    run();
    for (const std::vector<char>& saved : run.saved()) CHECK(saved == run.saved()[0]);
    CHECK(run.overlaps == 0);
    CHECK(run.torn == 0);
    std::vector<int64_t> decided;
    for (size_t step = 0; step < run.saved()[0].size(); ++step)
      if (run.saved()[0][step] != 0) decided.push_back(static_cast<int64_t>(step));
    CHECK(run.written == decided);
    CHECK(decided.size() > 20);
    CHECK(run.board.written() + run.board.failed() == decided.size());
    CHECK(run.board.failed() == decided.size() / 5);
    CHECK(run.board.saving() == -1);
    CHECK(run.board.last_step() == decided.back());
  }
}

TEST_CASE("a save that is asked for begins before the next step that no rank has come to, and once") {
  SaveBoard board;
  CHECK_FALSE(board.saves_before(1, never));
  board.ask();
  CHECK_FALSE(board.saves_before(1, never));  // that was decided for the other ranks too
  CHECK(board.saves_before(2, never));
  CHECK(board.saves_before(2, never));
  board.finished(true);
  CHECK(board.written_step() == 2);
  CHECK_FALSE(board.saves_before(3, never));
}

TEST_CASE("a save requested during another one follows it") {
  SaveBoard board;
  CHECK(board.saves_before(1, always));
  board.ask();
  CHECK_FALSE(board.saves_before(2, always));
  board.finished(false);
  CHECK(board.failed() == 1);
  CHECK(board.written_step() == -1);
  CHECK(board.saves_before(3, never));
  CHECK(board.saving() == 3);
}

TEST_CASE("a position belongs to the step for which it was reported") {
  SaveBoard board;
  CHECK_FALSE(board.is_reported(0));
  SaveBoard::Position position;
  position.loss_sum = 1.5;
  board.report_position(0, position);
  CHECK(board.is_reported(0));
  CHECK_FALSE(board.is_reported(1));
  CHECK(board.position().loss_sum == 1.5);
}

TEST_CASE("a resumed run asks which saves are due since the step at which it began") {
  SaveBoard board;
  board.begin_at(40);
  int64_t asked = 0;
  CHECK_FALSE(board.saves_before(41, [&](int64_t last) {
    asked = last;
    return false;
  }));
  CHECK(asked == 40);
}

TEST_CASE("the writer takes the newest of the offered saves, and no set that it writes or that is offered is free") {
  SaveBoard board;
  CHECK_FALSE(board.take_offer());
  CHECK_FALSE(board.was_offered());
  CHECK(board.free_set() == 0);
  board.offer(7, 0, {.loss_sum = 7});
  CHECK(board.is_busy());
  CHECK(board.saving() == -1);
  CHECK(board.free_set() == 1);
  REQUIRE(board.take_offer());
  CHECK(board.saving() == 7);
  CHECK(board.set() == 0);
  board.offer(8, 1, {.loss_sum = 8});
  CHECK(board.free_set() == 2);
  board.offer(9, 2, {.loss_sum = 9});
  CHECK(board.free_set() == 1);
  CHECK(board.saving() == 7);
  board.finished(true);
  CHECK(board.written_step() == 7);
  REQUIRE(board.take_offer());
  CHECK(board.was_offered());
  CHECK(board.saving() == 9);
  CHECK(board.is_reported(9));
  CHECK(board.position().loss_sum == 9);
  CHECK(board.set() == 2);
  board.finished(true);
  CHECK_FALSE(board.is_busy());
  CHECK_FALSE(board.take_offer());
}

TEST_CASE("the validations of the last two saves are found by their step") {
  const auto board = std::make_unique<SaveBoard>();
  CHECK(board->validated() == -1);
  CHECK(board->validation_of(0) == nullptr);
  for (int64_t step = 10; step <= 60; step += 10) {
    SaveBoard::Position position;
    position.validation[0] = static_cast<double>(step);
    board->report_validated(step, position);
    CHECK(board->validated() == step);
    for (const int64_t known : {step, step - 10}) {
      if (known == 0) continue;
      REQUIRE(board->validation_of(known) != nullptr);
      CHECK(board->validation_of(known)->validation[0] == static_cast<double>(known));
    }
    CHECK(board->validation_of(step + 10) == nullptr);
  }
}

TEST_CASE("a save is dropped only for a later state that waits for it") {
  SaveBoard board;
  REQUIRE(board.saves_before(40, [](int64_t) { return true; }));
  CHECK_FALSE(board.must_give_way());
  board.await_room(40);  // the state that is being saved is the last one
  CHECK_FALSE(board.must_give_way());
  board.await_room(60);
  CHECK(board.must_give_way());
  board.finished(false);
  REQUIRE(board.saves_before(60, [](int64_t) { return true; }));
  CHECK_FALSE(board.must_give_way());
}
