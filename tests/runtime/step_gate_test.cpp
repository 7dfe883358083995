// Tests that ranks end after the same step without communicating.
#include "engine/runtime/comm/step_gate.h"

#include <doctest/doctest.h>

#include <chrono>
#include <thread>
#include <vector>

using namespace trainctl;

TEST_CASE("an open gate lets every step through and knows the highest") {
  StepGate gate;
  CHECK(gate.start(1));
  CHECK(gate.start(2));
  CHECK(gate.start(1));
  CHECK(gate.highest() == 2);
  CHECK_FALSE(gate.asked_to_stop());
}

TEST_CASE("a closed gate permits the steps that some rank has started, and no further step") {
  StepGate gate;
  CHECK(gate.start(3));
  gate.ask_to_stop();
  CHECK(gate.start(2));
  CHECK(gate.start(3));
  CHECK_FALSE(gate.start(4));
  CHECK(gate.highest() == 3);
  CHECK(gate.asked_to_stop());
}

TEST_CASE("a gate that is closed before the first step permits no step") {
  StepGate gate;
  gate.ask_to_stop();
  CHECK_FALSE(gate.start(1));
  CHECK(gate.highest() == 0);
}

TEST_CASE("ranks at different speeds, stopped at any moment, have all run the same steps") {
  for (int round = 0; round < 200; ++round) {
    StepGate gate;
    std::vector<uint64_t> last(4);
    std::vector<std::thread> ranks;
    for (size_t rank = 0; rank < last.size(); ++rank) {
      ranks.emplace_back([&, rank] {
        uint64_t step = 1;
        while (gate.start(step)) {
          if (step++ % 8 == rank) std::this_thread::yield();
        }
        last[rank] = step - 1;
      });
    }
    // A thread that sleeps soon gets a core; one that only yields waits for the time slices of all others.
    while (gate.highest() < static_cast<uint64_t>(round)) std::this_thread::sleep_for(std::chrono::microseconds(1));
    gate.ask_to_stop();
    for (std::thread& rank : ranks) rank.join();
    for (const uint64_t step : last) CHECK(step == gate.highest());
  }
}
