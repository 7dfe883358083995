// Tests that for any network and strategies, the plan is legal or the job is refused with a SpecError.
#include <doctest/doctest.h>
#include <fmt/format.h>

#include <random>

#include "engine/base/text.h"
#include "tests/plan/planned.h"

using namespace trainctl;

namespace {

class RandomJob {
 public:
  explicit RandomJob(unsigned seed) : random_(seed) {}

  std::string text() {
    const int stages = pick({1, 1, 2, 3});
    const int micro_batches = pick({1, 2, 4});
    const int ranks = stages * pick({1, 2, 3, 4, 6, 8, 12});
    const int64_t rows = pick({4, 6, 12, 24, 16});
    std::string network;
    const int layers = 3 + pick({0, 1, 2, 3, 4, 5, 6});
    for (int l = 0; l < layers; ++l) network += layer(l);
    const char* mode = pick({0, 1, 2}) == 0 ? "data_parallel" : "semi_auto_parallel";
    std::string job = dataset(rows * micro_batches, "[4, 12]", fmt::format("[4, {}]", width_)) + "network:\n" +
                      network +
                      fmt::format(
                          "loss: mse\nlaunch: {{ranks: {}}}\nparallel:\n  mode: {}\n  stages: {}\n"
                          "  micro_batches: {}\n",
                          ranks, mode, stages, micro_batches);
    if (!strategies_.empty() && mode[0] == 's') job += "  strategies:\n" + strategies_;
    return job;
  }

 private:
  int pick(const std::vector<int>& from) { return from[random_() % from.size()]; }

  std::string layer(int l) {
    const std::string name = fmt::format("l{}", l);
    const std::string head = fmt::format("  - {{name: {}, type: ", name);
    say_strategy(name);
    switch (random_() % 9) {
      case 0: {
        width_ = pick({8, 12, 24, 10});
        same_width_ = {name};
        return head + fmt::format("dense, units: {}}}\n", width_);
      }
      case 1: {
        width_ = pick({8, 12, 24});
        same_width_ = {name};
        return head + fmt::format("matmul, units: {}}}\n", width_);
      }
      case 2:
        return keep(name, head + "relu}\n");
      case 3:
        return keep(name, head + "layer_norm}\n");
      case 4:
        return keep(name, head + "softmax}\n");
      case 5:
        return keep(name, head + "dropout}\n");
      case 6:
        return keep(name, head + "batch_norm}\n");
      case 7: {
        if (same_width_.size() < 2) return keep(name, head + "gelu}\n");
        const std::string other = same_width_[random_() % (same_width_.size() - 1)];
        const std::string line = fmt::format("{}add, inputs: [{}, {}]}}\n", head, same_width_.back(), other);
        return keep(name, line);
      }
      default:
        return keep(name, head + "sigmoid}\n");
    }
  }

  std::string keep(const std::string& name, std::string line) {
    same_width_.push_back(name);
    return line;
  }

  void say_strategy(const std::string& name) {
    if (random_() % 3 != 0) return;
    const auto cut = [&] { return pick({1, 1, 2, 2, 3, 4}); };
    strategies_ += fmt::format("    {}: [[{}, {}, {}]]\n", name, cut(), pick({1, 1, 2}), cut());
  }

  std::mt19937 random_;
  int64_t width_ = 12;
  std::vector<std::string> same_width_;
  std::string strategies_;
};

}  // namespace

TEST_CASE("a random job gets a legal plan or a SpecError, never an internal error") {
  int legal = 0;
  int refused = 0;
  for (unsigned seed = 0; seed < 400; ++seed) {
    const std::string job = RandomJob(seed).text();
    CAPTURE(job);
    try {
      const Planned p = planned(job);
      CAPTURE(to_string(p.plan, p.graph));
      CHECK(broken_rule(p) == "");
      // Every tensor gets from the rank that produces it to the ranks that read it.
      for (Phase phase : {Phase::forward, Phase::backward}) (void)p.moves(phase);
      for (LayerId l = 0; l < static_cast<LayerId>(p.graph.layers.size()); ++l) {
        const StrategySpec* said = nullptr;
        for (const StrategySpec& s : p.spec.parallel.strategies) {
          if (s.pattern == p.graph.layers[l].name) said = &s;
        }
        if (said != nullptr && p.plan.mode == ParallelMode::semi_auto_parallel) {
          CHECK(layer_cuts(p.graph, p.plan, l).front() == said->cuts.front());
        }
      }
      ++legal;
    } catch (const SpecError& error) {
      CHECK(std::string(error.what()) != "");
      ++refused;
    }
  }
  MESSAGE(legal << " legal, " << refused << " refused");
  CHECK(legal > 100);
  CHECK(refused > 50);
}
