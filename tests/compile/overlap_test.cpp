// Tests of work that the streams of a program can do at the same time.
#include <doctest/doctest.h>

#include <algorithm>
#include <array>

#include "engine/compile/compile.h"
#include "engine/compile/verify/verify_programs.h"
#include "engine/model/model.h"
#include "engine/spec/parse.h"
#include "tests/compile/sketch.h"

using namespace trainctl;

namespace {

/// Programs of four equal layers on four ranks. At level 3 each layer is its own bucket; with 4096 units it is at the
/// other levels too.
std::vector<Program> compiled_all(int level, const std::vector<std::string>& more, const std::string& units,
                                  int64_t piece_bytes = 0) {
  std::vector<std::string> overrides = {"parallel.optimizer_shard={level: " + std::to_string(level) + ", min_kb: 0}"};
  overrides.insert(overrides.end(), more.begin(), more.end());
  const JobSpec spec = parse_job(R"(
dataset: {type: random, shape: [)" + units +
                                     R"(], label_shape: [)" + units +
                                     R"(], label_dtype: f32, batch: 32}
modules:
  layer: [{name: dense, type: dense, units: )" +
                                     units + R"(}]
network:
  - {name: h, module: layer, repeat: 4}
loss: mse
optimizer: {type: adam, learning_rate: 0.01}
parallel: {mode: data_parallel, micro_batches: 2}
launch: {ranks: 4}
)",
                                 "job.yaml", overrides);
  const Graph graph = build_graph(spec, data_and_label(spec.dataset.shape, spec.dataset.label_shape));
  Plan plan = make_plan(graph, spec, CostModel());
  if (piece_bytes > 0) plan.gradient_piece_bytes = piece_bytes;
  return compile_all(graph, plan, CostModel());
}
Program compiled(int level, const std::vector<std::string>& more = {}, const std::string& units = "64",
                 int64_t piece_bytes = 0) {
  return compiled_all(level, more, units, piece_bytes)[0];
}

bool overlap(const Operand& a, const Operand& b) {
  return a.offset < b.offset + b.bytes() && b.offset < a.offset + a.bytes();
}

/// For each gather of weights at level 3, the positions of the gather and of the last instruction that reads its
/// weights.
std::vector<std::pair<int, int>> gathered_lives(const Program& p) {
  std::vector<std::pair<int, int>> lives;
  for (int i = 0; i < static_cast<int>(p.instructions.size()); ++i) {
    const Instruction& gather = p.instructions[i];
    if (gather.opcode != Opcode::collective || gather.purpose != Purpose::weights || gather.micro_batch < 0) continue;
    lives.emplace_back(i, i);
    for (int r = i + 1; r < static_cast<int>(p.instructions.size()); ++r) {
      const Instruction& reader = p.instructions[r];
      const auto writes = [&](const Operand& o) { return overlap(o, gather.outputs[0]); };
      if (std::any_of(reader.outputs.begin(), reader.outputs.end(), writes)) break;
      if (std::any_of(reader.inputs.begin(), reader.inputs.end(), writes)) lives.back().second = r;
    }
  }
  return lives;
}

/// Returns whether a gather of weights comes after the update.
bool is_gathered(const Program& p, size_t update) {
  return update + 1 < p.instructions.size() && p.instructions[update + 1].purpose == Purpose::weights;
}

/// Collectives on gradients, in list order.
std::vector<int> reductions(const Program& p) {
  std::vector<int> found;
  for (int i = 0; i < static_cast<int>(p.instructions.size()); ++i) {
    const Instruction& code = p.instructions[static_cast<size_t>(i)];
    if (code.opcode == Opcode::collective && code.purpose == Purpose::gradient) found.push_back(i);
  }
  return found;
}

/// The last reduction of a bucket's gradients; -1: none.
int last_reduction(const Program& p, const std::string& bucket) {
  int last = -1;
  for (int i : reductions(p)) {
    if (p.instructions[static_cast<size_t>(i)].inputs[0].tensor == "grad." + bucket) last = i;
  }
  return last;
}

}  // namespace

TEST_CASE(
    "level 3: each layer's weights are being gathered before the previous layer computes, and at most two are in "
    "memory") {
  for (const std::string precision : {"fp32", "bf16"}) {
    const Program p = compiled(3, {"precision=" + precision});
    const auto lives = gathered_lives(p);
    // There are two micro-batches, each with four layers forward. Two layers gather for the backward pass: the first
    // layer needs no gradient of its data, and the last layer's weights are still in memory.
    REQUIRE(lives.size() == 12);
    for (size_t k = 0; k + 1 < lives.size(); ++k) {
      CHECK(lives[k + 1].first < lives[k].second);
      if (k + 2 < lives.size()) CHECK(lives[k + 2].first > lives[k].second);
    }
    for (size_t k = 1; k < lives.size(); ++k) {
      // No instruction between a gather and the product before its own product waits for it.
      for (int i = lives[k].first + 1; i <= lives[k - 1].second; ++i) {
        const std::vector<int>& waits = p.instructions[i].waits;
        CHECK(std::find(waits.begin(), waits.end(), lives[k].first) == waits.end());
      }
    }
  }
}

TEST_CASE("level 3: where the backward pass begins, a gathered weight leaves memory before its gradient is made") {
  for (const std::string precision : {"fp32", "bf16"}) {
    const Program p = compiled(3, {"parallel.micro_batches=1", "precision=" + precision});
    const auto at = [&](const std::string& name) {
      const auto is_named = [&](const Instruction& i) { return i.name == name; };
      return std::find_if(p.instructions.begin(), p.instructions.end(), is_named) - p.instructions.begin();
    };
    CHECK(at("h.3.dense.matmul.grad_in0") < at("h.3.dense.matmul.grad_weight"));
    CHECK(at("h.3.dense.matmul.grad_weight") < at("h.2.dense.matmul.grad_weight"));
    CHECK(at("h.2.dense.matmul.grad_weight") < at("h.2.dense.matmul.grad_in0"));
    // The reduction of the first gradient waits for the gather that the next layer needs.
    const Instruction& reduction = p.instructions[static_cast<size_t>(reductions(p).front())];
    const Instruction& before = p.instructions[static_cast<size_t>(reductions(p).front()) - 1];
    CHECK(reduction.collective == Collective::reduce_scatter);
    CHECK(before.collective == Collective::all_gather);
  }
}

TEST_CASE("no work on a micro-batch waits for the reduction that was issued last") {
  for (int level = 0; level <= 3; ++level) {
    for (const std::string micro_batches : {"1", "2", "4"}) {
      const Program p = compiled(level, {"parallel.micro_batches=" + micro_batches});
      int last = -1;
      for (int i = 0; i < static_cast<int>(p.instructions.size()); ++i) {
        const Instruction& code = p.instructions[static_cast<size_t>(i)];
        if (code.opcode == Opcode::collective && code.purpose == Purpose::gradient) last = i;
        if (code.stream != Stream::compute || code.micro_batch < 0) continue;
        if (code.op == "accumulate" && code.micro_batch == (micro_batches[0] - '1')) continue;  // the step ends here
        for (int w : code.waits) CHECK_MESSAGE(w != last, code.name, " waits for the last, level ", level);
      }
      CHECK(last >= 0);
    }
  }
}

TEST_CASE("the last large gradient is computed and reduced in pieces: while one is reduced the next is computed") {
  for (int level = 0; level <= 2; ++level) {
    for (const std::string more : {"parallel.micro_batches=1", "parallel.micro_batches=2", "precision=bf16"}) {
      CAPTURE(level);
      CAPTURE(more);
      const Program p = compiled(level, {more}, "64", 4096);  // 16 KiB
      const auto in_pieces =
          std::find_if(p.buckets.rbegin(), p.buckets.rend(), [](const Bucket& b) { return b.pieces > 1; });
      REQUIRE(in_pieces != p.buckets.rend());
      CHECK(in_pieces->pieces == 4);
      CHECK(in_pieces->elements == 64 * 64);
      const bool exchanged = level == 1 && more == "precision=bf16";  // the last two, see below
      CHECK(std::count_if(p.buckets.begin(), p.buckets.end(), [](const Bucket& b) { return b.pieces > 1; }) ==
            (exchanged ? 2 : 1));
      int before = -1, updates = 0;
      for (int piece = 0; piece < 4; ++piece) {
        const Bucket::Piece range = in_pieces->piece(piece);
        const int reduction = last_reduction(p, range.name);
        REQUIRE(reduction > before);
        // Between two reductions there is only the product of the piece, and nothing else of the backward pass.
        const auto makes = [&](const Instruction& i) { return i.op == "matmul_weight_grad"; };
        const auto from = p.instructions.begin() + std::max(before, 0), to = p.instructions.begin() + reduction;
        if (piece > 0) CHECK(std::count_if(from, to, makes) == 1);
        const auto made = std::find_if(std::make_reverse_iterator(to), p.instructions.rend(), makes);
        REQUIRE(made != p.instructions.rend());
        CHECK(made->attrs.integer("first_row") == 16 * piece);
        CHECK(made->outputs[0].shape == Shape{16, 64});
        CHECK(made->outputs[0].global_offset == Shape{16 * piece, 0});
        for (int w : p.instructions[static_cast<size_t>(reduction)].waits) CHECK(w < p.instructions.rend() - made);
        before = reduction;
      }
      for (int i = 0; i < static_cast<int>(p.instructions.size()); ++i) {
        const Instruction& code = p.instructions[static_cast<size_t>(i)];
        if (!is_update(code) || !code.inputs[0].tensor.starts_with("grad." + in_pieces->name + ".")) continue;
        ++updates;
      }
      CHECK(updates == 4);
    }
  }
}

TEST_CASE("other reductions after the last large gradient wait for its last piece") {
  const Program p =
      compiled(2, {"parallel.optimizer_shard={level: 2, min_kb: 8}", "parallel.micro_batches=1"}, "64", 4096);
  const auto in_pieces = std::find_if(p.buckets.begin(), p.buckets.end(), [](const Bucket& b) { return b.pieces > 1; });
  REQUIRE(in_pieces != p.buckets.end());
  const auto biases = std::find_if(p.buckets.begin(), p.buckets.end(), [](const Bucket& b) { return b.level == 0; });
  REQUIRE(biases != p.buckets.end());
  CHECK(last_reduction(p, biases->name) > last_reduction(p, in_pieces->piece(in_pieces->pieces - 1).name));
}

TEST_CASE("gradients that are not reduced, small, or cut at level 3 are in one piece") {
  const auto most_pieces = [](const Program& p) {
    int most = 0;
    for (const Bucket& b : p.buckets) most = std::max(most, b.pieces);
    return most;
  };
  CHECK(most_pieces(compiled(0)) == 1);
  CHECK(most_pieces(compiled(3, {}, "64", 4096)) == 1);
  CHECK(most_pieces(compiled(0, {"launch.ranks=1", "parallel.mode=stand_alone"}, "64", 4096)) == 1);
  CHECK(most_pieces(compiled(1, {}, "64", 64)) == 8);
}

TEST_CASE("updates are in the order in which their gradients are summed") {
  for (int level = 0; level <= 3; ++level) {
    // With a minimum, all biases share a bucket, which is the first to be opened and the last to be summed.
    for (const std::string min_kb : {"0", "64"}) {
      const Program p = compiled(
          level, {"parallel.optimizer_shard={level: " + std::to_string(level) + ", min_kb: " + min_kb + "}"}, "4096");
      int updates = 0;
      std::array<int, 2> before = {-1, -1};  // for updates that no gather waits for, and for the others
      for (size_t i = 0; i < p.instructions.size(); ++i) {
        const Instruction& code = p.instructions[i];
        if (!is_update(code)) continue;
        const bool gathered = is_gathered(p, i);
        const int reduction = last_reduction(p, code.inputs[0].tensor.substr(5));
        CHECK_MESSAGE(reduction > before[gathered], code.name, ", level ", level, ", min_kb ", min_kb);
        before[gathered] = reduction;
        ++updates;
      }
      CHECK(updates == static_cast<int>(p.buckets.size()));
    }
  }
}

TEST_CASE("all updates but that of the last bucket precede the first wait for the last reduction") {
  for (int level = 0; level <= 3; ++level) {
    for (const std::string micro_batches : {"1", "2"}) {
      const Program p = compiled(level, {"parallel.micro_batches=" + micro_batches}, "4096");
      const int last = reductions(p).back();
      size_t updates = 0;
      for (const Instruction& code : p.instructions) {
        const bool waits = std::find(code.waits.begin(), code.waits.end(), last) != code.waits.end();
        if (code.stream == Stream::compute && waits) break;
        updates += is_update(code) ? 1 : 0;
      }
      CHECK_MESSAGE(updates + 1 == p.buckets.size(), "level ", level, ", micro-batches ", micro_batches);
    }
  }
}

TEST_CASE("levels 1 and 2: a bucket is updated and gathered before the next is reduced, so that compute hides both") {
  for (int level = 1; level <= 2; ++level) {
    for (const std::string micro_batches : {"1", "2"}) {
      const Program p = compiled(level, {"parallel.micro_batches=" + micro_batches, "dataset.batch=1024"}, "4096");
      CAPTURE(level);
      CAPTURE(micro_batches);
      const std::vector<int> sums = reductions(p);
      int before_next = 0, at_the_end = 0;
      for (int i = 0; i < static_cast<int>(p.instructions.size()); ++i) {
        const Instruction& code = p.instructions[static_cast<size_t>(i)];
        if (!is_update(code)) continue;
        const std::string bucket = code.inputs[0].tensor.substr(5);
        CHECK(p.instructions[static_cast<size_t>(i) + 1].name == "all_gather weights." + bucket);
        const auto own = std::find(sums.begin(), sums.end(), last_reduction(p, bucket));
        const auto next = std::find_if(own, sums.end(), [&](int sum) {
          const Instruction& made_before = p.instructions[static_cast<size_t>(sum) - 1];
          return sum > *own && made_before.opcode != Opcode::collective;
        });
        if (next == sums.end()) {
          ++at_the_end;
        } else {
          before_next += i < *next ? 1 : 0;
        }
      }
      // At level 2 the sum over micro-batches comes after the next reduction.
      const bool sums_up = level == 2 && micro_batches == "2";
      CHECK(before_next == (sums_up ? 0 : static_cast<int>(p.buckets.size()) - 1));
      CHECK(at_the_end == 1);
    }
  }
}

TEST_CASE("levels 1 and 2 in bf16: weights are gathered during the forward pass, except those that it starts with") {
  for (int level = 1; level <= 2; ++level) {
    for (const std::string micro_batches : {"1", "2"}) {
      CAPTURE(level);
      CAPTURE(micro_batches);
      const Program p =
          compiled(level, {"parallel.micro_batches=" + micro_batches, "precision=bf16", "dataset.batch=1024"}, "4096");
      const int first = std::find_if(p.variables.begin(), p.variables.end(), [](const Variable& v) {
                          return v.name == "h.0.dense.weight";
                        })->bucket;
      std::vector<int> gathered(p.buckets.size());
      for (const Instruction& code : p.instructions) {
        if (code.opcode != Opcode::collective || code.purpose != Purpose::weights) continue;
        const auto bucket = std::find_if(p.buckets.begin(), p.buckets.end(),
                                         [&](const Bucket& b) { return code.name == "all_gather weights." + b.name; });
        REQUIRE(bucket != p.buckets.end());
        const auto b = static_cast<int>(bucket - p.buckets.begin());
        ++gathered[static_cast<size_t>(b)];
        CHECK(code.micro_batch == (b == first ? -1 : 0));
        if (b != first) CHECK(code.phase == Phase::forward);
      }
      CHECK(std::count(gathered.begin(), gathered.end(), 1) == static_cast<int>(p.buckets.size()));
      // The first product waits for nothing.
      const auto product = std::find_if(p.instructions.begin(), p.instructions.end(),
                                        [](const Instruction& code) { return code.op.starts_with("matmul"); });
      CHECK(product->waits.empty());
    }
  }
}

TEST_CASE("in bf16 a program that reads weights before it gathers them is wrong") {
  std::vector<Program> programs =
      compiled_all(2, {"parallel.micro_batches=1", "precision=bf16", "dataset.batch=1024"}, "4096");
  for (Program& p : programs) {
    const auto gather = std::find_if(p.instructions.begin(), p.instructions.end(),
                                     [](const Instruction& code) { return code.purpose == Purpose::weights; });
    const auto reader = std::find_if(gather, p.instructions.end(), [&](const Instruction& code) {
      return code.opcode == Opcode::kernel &&
             std::any_of(code.inputs.begin(), code.inputs.end(),
                         [&](const Operand& in) { return overlap(in, gather->outputs[0]); });
    });
    REQUIRE(reader != p.instructions.end());
    move_instruction(p, static_cast<int>(gather - p.instructions.begin()),
                     static_cast<int>(reader - p.instructions.begin()));
  }
  const std::vector<ProgramFault> faults = verify_programs(programs);
  CHECK(std::any_of(faults.begin(), faults.end(), [](const ProgramFault& fault) {
    return fault.message.find("before they are gathered") != std::string::npos;
  }));
}

TEST_CASE("levels 1 and 2 in bf16: updates that no gather waits for fill the time until the last reductions end") {
  for (int level = 1; level <= 2; ++level) {
    const Program p = compiled(level, {"parallel.micro_batches=1", "precision=bf16", "dataset.batch=1024"}, "4096",
                               int64_t{16} << 20);
    const int last = reductions(p).back();
    const std::string awaited = p.instructions[static_cast<size_t>(last)].inputs[0].tensor;
    int before = 0, after = 0;
    bool seen = false;
    for (int i = 0; i < static_cast<int>(p.instructions.size()); ++i) {
      const Instruction& code = p.instructions[static_cast<size_t>(i)];
      if (!is_update(code)) continue;
      const bool fills = !is_gathered(p, static_cast<size_t>(i));
      if (fills) CHECK(i > last);
      seen |= code.inputs[0].tensor == awaited;
      if (fills) ++(seen ? after : before);
    }
    CHECK(seen);
    CHECK(before >= 1);
    CHECK(before + after == 2 + 1 + 4);  // the whole of two layers, one bias, and its weight in pieces
  }
}

TEST_CASE("levels 1 and 2 in bf16: the last gradient computed is that of weights that are gathered later") {
  for (int level = 0; level <= 2; ++level) {
    for (const std::string precision : {"fp32", "bf16"}) {
      const Program p = compiled(level, {"parallel.micro_batches=1", "precision=" + precision, "dataset.batch=1024"},
                                 "4096", int64_t{16} << 20);
      const auto last = std::find_if(p.instructions.rbegin(), p.instructions.rend(),
                                     [](const Instruction& code) { return code.op == "matmul_weight_grad"; });
      REQUIRE(last != p.instructions.rend());
      CHECK(last->name ==
            (level > 0 && precision == "bf16" ? "h.1.dense.matmul.grad_weight.3" : "h.0.dense.matmul.grad_weight.3"));
    }
  }
}

TEST_CASE(
    "a weight gradient that is reduced is computed before the input gradient, unless other ranks wait for the latter") {
  const auto place = [](const Program& p, const std::string& name) {
    const auto found = std::find_if(p.instructions.begin(), p.instructions.end(),
                                    [&](const Instruction& i) { return i.name == name; });
    REQUIRE(found != p.instructions.end());
    return found - p.instructions.begin();
  };
  const std::string weight = "h.2.dense.matmul.grad_weight", input = "h.2.dense.matmul.grad_in0";
  for (int level = 0; level <= 3; ++level) {
    const Program p = compiled(level, {"parallel.micro_batches=1"}, "4096");
    CHECK_MESSAGE(place(p, weight) < place(p, input), "level ", level);
    CHECK_MESSAGE(p.instructions[static_cast<size_t>(place(p, weight)) + 1].purpose == Purpose::gradient, "level ",
                  level);
  }
  // The ranks have different units of a layer, so each of them computes one term of the sum that is the gradient of the
  // layer's input.
  for (const std::string cuts : {"[[2, 1], [2, 1], [2]]", "[[1, 1], [4, 1], [4]]"}) {
    const Program p = compiled(
        0, {"parallel.micro_batches=1", "parallel.mode=semi_auto_parallel", "parallel.strategies.h.*=" + cuts}, "4096");
    const auto sum = place(p, "reduce_scatter grad.h.1.dense");
    CHECK(place(p, input) < sum);
    CHECK(sum < place(p, weight));
  }
}

TEST_CASE("levels 1 and 2: no update is where it would wait for its reduction, except at the end") {
  for (int level = 1; level <= 2; ++level) {
    const Program p = compiled(level, {"parallel.micro_batches=1"}, "4096");  // 8 rows per rank: reductions take longer
    const int last = reductions(p).back();
    for (int i = 0; i < last; ++i) {
      if (!is_update(p.instructions[static_cast<size_t>(i)])) continue;
      const int reduction = last_reduction(p, p.instructions[static_cast<size_t>(i)].inputs[0].tensor.substr(5));
      const auto works =
          std::count_if(p.instructions.begin() + reduction, p.instructions.begin() + i,
                        [](const Instruction& code) { return code.op.starts_with("matmul") || is_update(code); });
      CHECK_MESSAGE(works >= 2, p.instructions[static_cast<size_t>(i)].name, ", level ", level);
    }
  }
}

TEST_CASE("with clip_norm every update comes after the norm of all gradients") {
  for (int level = 0; level <= 3; ++level) {
    const Program p = compiled(level, {"optimizer.clip_norm=1"}, "4096");
    bool has_norm = false;
    for (const Instruction& code : p.instructions) {
      has_norm |= code.opcode == Opcode::collective && code.purpose == Purpose::clip;
      if (is_update(code)) CHECK_MESSAGE(has_norm, code.name, ", level ", level);
    }
    CHECK(has_norm);
  }
}

TEST_CASE("a large weight is reduced together with the small parameters before it, in one collective per layer") {
  const Program p = compiled(0, {}, "4096");
  REQUIRE(p.buckets.size() == 4);
  for (const Bucket& bucket : p.buckets) CHECK(bucket.elements == 4096 * 4096 + 4096);
  const auto reduces = std::count_if(p.instructions.begin(), p.instructions.end(),
                                     [](const Instruction& i) { return i.purpose == Purpose::gradient; });
  CHECK(reduces == 4);
}
