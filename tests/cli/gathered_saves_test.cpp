// Tests of saves on several hosts: the launcher's side and the sides of two hosts, which exchange the messages of
// cli/run/saves/host_saves.h.
//
//   1. At a step at which a save is due, each rank asks, and all ranks get the launcher's answer (saves_before).
//   2. Each rank copies its state to an image in its host's memory, and the hosts send the images to the launcher.
//   3. When it has all images, the launcher offers the save to the process that writes, which takes the offer.
//
// For a save at any other time, the launcher first holds all gates (step_gate.h), so that all ranks stop before the
// same step. In these tests the "launcher" of a Scene does 1 and 3, and its "hosts" do 2.
#include "cli/run/saves/gathered_saves.h"

#include <doctest/doctest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <atomic>
#include <cstring>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "cli/run/saves/host_saves.h"

using namespace trainctl;

namespace {

std::shared_ptr<SharedMemory> board(int ranks) {
  return SharedMemory::create(std::vector<int64_t>(static_cast<size_t>(ranks), 0));
}

std::vector<int> memories(int count) {
  std::vector<int> fds;
  for (int i = 0; i < count; ++i) fds.push_back(memfd_create("test", MFD_CLOEXEC));
  return fds;
}

std::string text_of(int fd) {
  std::string text(1 << 20, '\0');
  const ssize_t got = pread(fd, text.data(), text.size(), 0);
  text.resize(static_cast<size_t>(std::max<ssize_t>(got, 0)));
  return text;
}

/// A launcher and hosts with these ranks.
struct Scene {
  explicit Scene(std::vector<std::vector<int>> ranks_of_hosts, int64_t first = -1, SaveAfter after = SaveAfter::on_disk)
      : ranks(std::move(ranks_of_hosts)),
        all(static_cast<int>(ranks.front().size() + ranks.back().size())),
        memory(board(all)),
        images(memories(SaveBoard::kSets * all)),
        launcher(memory, images, first < 0 ? 0 : first, after) {
    for (const auto& of_host : ranks) {
      boards.push_back(board(all));
      hosts.push_back(std::make_unique<HostSaves>(boards.back(), of_host, first));
    }
  }
  ~Scene() {
    for (const int fd : images) close(fd);
  }
  /// Delivers messages in both directions until none is pending.
  void deliver_messages() {
    for (bool delivered = true; delivered;) {
      delivered = false;
      for (size_t host = 0; host < hosts.size(); ++host)
        while (const auto message = hosts[host]->next()) {
          REQUIRE(launcher.take(*message, ranks[host]));
          delivered = true;
        }
      for (const hosts::SaveMessage& message : launcher.messages()) {
        for (const auto& host : hosts) host->take(message);
        delivered = true;
      }
    }
  }
  /// A rank of the host asks whether the state before `step` is saved, and waits for the answer.
  bool asks(size_t host, int64_t step, bool due = true) {
    bool answer = false;
    std::atomic<bool> is_answered = false;
    std::thread rank([&] {
      answer = boards[host]->saves().saves_before(step, [&](int64_t) { return due; });
      is_answered = true;
    });
    while (!is_answered) {
      deliver_messages();
      usleep(1000);
    }
    rank.join();
    deliver_messages();  // those that follow the answer
    return answer;
  }
  /// A rank copies its state to its image.
  void copy_state(size_t host, int rank, int64_t step, const std::string& state) {
    REQUIRE(ftruncate(hosts[host]->image(rank), static_cast<off_t>(state.size())) == 0);
    REQUIRE(pwrite(hosts[host]->image(rank), state.data(), state.size(), 0) == static_cast<ssize_t>(state.size()));
    boards[host]->status(rank).copied = static_cast<uint64_t>(step) + 1;
  }
  /// All ranks copy a state that names their rank and the step, and rank 0 reports its position. Each host has one
  /// rank.
  void copy_all(int64_t step) {
    for (int rank = 0; rank < all; ++rank)
      copy_state(static_cast<size_t>(rank), rank, step,
                 "rank " + std::to_string(rank) + " before " + std::to_string(step));
    boards[0]->saves().report_position(step, {.loss_sum = static_cast<double>(step)});
    deliver_messages();
  }
  /// The image of a rank that the writer reads.
  std::string written(int rank) const {
    return text_of(images[static_cast<size_t>(memory->saves().set() * all + rank)]);
  }

  const std::vector<std::vector<int>> ranks;
  const int all;
  std::shared_ptr<SharedMemory> memory;
  const std::vector<int> images;
  GatheredSaves launcher;
  std::vector<std::shared_ptr<SharedMemory>> boards;
  std::vector<std::unique_ptr<HostSaves>> hosts;
};

}  // namespace

TEST_CASE("gathered saves: all hosts get the same answer, and images of any size reach the launcher") {
  Scene scene({{0, 1}, {2}});
  CHECK(scene.asks(0, 10));
  CHECK(scene.asks(1, 10));
  CHECK(scene.launcher.gathering() == 10);
  const std::string large(700'000, 'x');  // more than one piece
  scene.copy_state(0, 0, 10, "state of 0");
  scene.copy_state(0, 1, 10, large);
  scene.copy_state(1, 2, 10, "");
  scene.boards[0]->saves().report_position(10, {.loss_sum = 1.5});
  CHECK_FALSE(scene.memory->saves().take_offer());
  scene.deliver_messages();
  REQUIRE(scene.memory->saves().take_offer());
  CHECK(scene.written(0) == "state of 0");
  CHECK(scene.written(1) == large);
  CHECK(scene.memory->saves().saving() == 10);
  CHECK(scene.memory->saves().is_reported(10));
  CHECK(scene.memory->saves().position().loss_sum == 1.5);
}

TEST_CASE("gathered saves: a save that is due while another is written is skipped, and made up for after that") {
  Scene scene(std::vector<std::vector<int>>{{0}, {1}});
  CHECK(scene.asks(0, 10));
  CHECK(scene.asks(1, 10));
  CHECK_FALSE(scene.asks(0, 20));
  CHECK_FALSE(scene.asks(1, 20));
  CHECK_FALSE(scene.launcher.wants_hold());
  scene.memory->status(0).finished_steps = 21;
  scene.copy_all(10);
  CHECK(scene.boards[1]->saves().saving() == 10);  // offered
  REQUIRE(scene.memory->saves().take_offer());     // by the process that writes
  scene.deliver_messages();
  CHECK(scene.boards[1]->saves().saving() == 10);
  scene.memory->saves().finished(true);
  scene.deliver_messages();
  CHECK(scene.boards[0]->saves().written() == 1);
  CHECK(scene.boards[1]->saves().saving() == -1);
  CHECK(scene.launcher.wants_hold());  // to make up for the save that was skipped
  scene.launcher.gates_held(23);
  scene.deliver_messages();
  for (size_t host = 0; host < 2; ++host) {
    CHECK(scene.boards[host]->saves().saves_before(23, [](int64_t) { return false; }));
    CHECK(scene.boards[host]->saves().saving() == 23);
  }
}

TEST_CASE(
    "gathered saves: a save on request begins once all gates are held, and not before the run's first step has ended") {
  Scene scene({{0}, {1}}, 40);
  scene.boards[1]->saves().ask();
  scene.deliver_messages();
  CHECK_FALSE(scene.launcher.wants_hold());  // no step has ended
  scene.memory->status(0).finished_steps = 41;
  CHECK(scene.launcher.wants_hold());
  scene.launcher.gates_held(40);
  CHECK(scene.launcher.gathering() == -1);
  scene.launcher.gates_held(42);
  CHECK(scene.launcher.gathering() == 42);
  CHECK_FALSE(scene.launcher.wants_hold());
}

TEST_CASE("gathered saves: an image whose size changes contains none of its old bytes") {
  Scene scene(std::vector<std::vector<int>>{{0}, {1}});
  for (const int64_t step : {10, 20}) {
    CHECK(scene.asks(0, step));
    CHECK(scene.asks(1, step));
    scene.copy_state(0, 0, step, step == 10 ? "a longer state" : "short");
    scene.copy_state(1, 1, step, "b");
    scene.boards[0]->saves().report_position(step, {});
    scene.deliver_messages();
    REQUIRE(scene.memory->saves().take_offer());
    CHECK(scene.written(0) == (step == 10 ? "a longer state" : "short"));
    CHECK(scene.written(1) == "b");
    scene.memory->saves().finished(true);
    scene.deliver_messages();
  }
}

TEST_CASE("gathered saves: if no save may be skipped, a due step waits until the launcher has the previous save") {
  Scene scene({{0}, {1}}, -1, SaveAfter::gathered);
  CHECK(scene.asks(0, 10));
  CHECK(scene.asks(1, 10));
  std::atomic<bool> is_answered = false;
  std::thread rank([&] { is_answered = scene.boards[0]->saves().saves_before(11, [](int64_t) { return true; }); });
  for (int i = 0; i < 50; ++i) {
    scene.deliver_messages();
    usleep(1000);
  }
  CHECK_FALSE(is_answered);
  scene.copy_state(0, 0, 10, "a");
  scene.boards[0]->saves().report_position(10, {});
  scene.deliver_messages();
  CHECK_FALSE(is_answered);
  scene.copy_state(1, 1, 10, "b");
  while (!is_answered) {  // the rank may not even have asked yet
    scene.deliver_messages();
    usleep(1000);
  }
  rank.join();
  CHECK(scene.launcher.gathering() == 11);
}

TEST_CASE("gathered saves: no step waits for the disk, and the newest save that is complete is written next") {
  Scene scene({{0}, {1}}, -1, SaveAfter::gathered);
  for (const int64_t step : {1, 2, 3, 4, 5}) {
    CHECK(scene.asks(0, step));
    CHECK(scene.asks(1, step));
    scene.copy_all(step);
    if (step == 1) REQUIRE(scene.memory->saves().take_offer());  // the disk is slow from here on
    CHECK(scene.written(0) == "rank 0 before 1");
  }
  CHECK(scene.asks(0, 6));  // then the host of rank 1 is lost before it has sent its state
  scene.copy_state(0, 0, 6, "half of a save");
  scene.deliver_messages();
  scene.memory->saves().finished(true);
  REQUIRE(scene.memory->saves().take_offer());
  CHECK(scene.memory->saves().saving() == 5);
  CHECK(scene.memory->saves().position().loss_sum == 5);
  for (int one = 0; one < 2; ++one) CHECK(scene.written(one) == "rank " + std::to_string(one) + " before 5");
  scene.memory->saves().finished(true);
  CHECK_FALSE(scene.memory->saves().take_offer());
}

TEST_CASE("gathered saves: an invalid message from a host is rejected") {
  Scene scene(std::vector<std::vector<int>>{{0}, {1}});
  CHECK(scene.asks(0, 10));
  const auto takes = [&](hosts::SaveMessage message) { return scene.launcher.take(message, {1}); };
  CHECK_FALSE(takes({.name = "wanted", .number = -1}));
  CHECK_FALSE(takes({.name = "position", .number = 1, .text = "short"}));
  CHECK_FALSE(takes({.name = "validated", .number = 1, .text = "short"}));
  CHECK_FALSE(takes({.name = "sized", .rank = 0, .number = 5}));  // another host's rank
  CHECK_FALSE(takes({.name = "sized", .rank = 1, .number = -5}));
  CHECK(takes({.name = "sized", .rank = 1, .number = 5}));
  CHECK_FALSE(takes({.name = "image", .rank = 1, .number = 3, .text = "more"}));
  CHECK_FALSE(takes({.name = "image", .rank = 1, .number = -1, .text = "x"}));
  CHECK(takes({.name = "image", .rank = 1, .number = 1, .text = "more"}));
  CHECK_FALSE(takes({.name = "nonsense", .rank = 1}));
}

TEST_CASE("gathered saves: the result of a validation reaches the writer after the state that was validated is saved") {
  Scene scene(std::vector<std::vector<int>>{{0}, {1}});
  SaveBoard::Position position;
  position.is_validated = true;
  position.validation[0] = 0.25;
  CHECK(scene.memory->saves().validated() == -1);
  CHECK(scene.launcher.take(
      {.name = "validated", .number = 10, .text = {reinterpret_cast<const char*>(&position), sizeof position}}, {0}));
  CHECK(scene.memory->saves().validated() == 10);
  REQUIRE(scene.memory->saves().validation_of(10) != nullptr);
  CHECK(scene.memory->saves().validation_of(5) == nullptr);
  CHECK(scene.memory->saves().validation_of(10)->validation[0] == 0.25);
}
