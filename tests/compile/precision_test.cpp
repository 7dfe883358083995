// Tests of `precision`: what the programs of bf16 and tf32 jobs store, move and update.
#include <doctest/doctest.h>

#include "engine/compile/compile.h"
#include "engine/compile/verify/verify_programs.h"
#include "engine/model/model.h"
#include "engine/spec/parse.h"
#include "tests/compile/sketch.h"
#include "tests/jobs/jobs.h"

using namespace trainctl;

namespace {

std::vector<Program> precise_compiled(const std::vector<std::string>& overrides) {
  const JobSpec spec = job_spec("layer_norm", overrides);
  const Graph graph = build_graph(spec, data_and_label(spec.dataset.shape, spec.dataset.label_shape));
  const Plan plan = make_plan(graph, spec, CostModel());
  return compile_all(graph, plan, CostModel());
}

std::vector<Program> bf16(int level) {
  return precise_compiled(
      {"precision=bf16", "parallel.optimizer_shard={level: " + std::to_string(level) + ", min_kb: 0}"});
}

const Instruction& update_of(const Program& program, const Bucket& bucket) {
  const std::vector<int> found = find_all(program, Opcode::kernel, "update " + bucket.name);
  REQUIRE(found.size() == 1);
  return program.instructions[static_cast<size_t>(found[0])];
}

}  // namespace

TEST_CASE("bf16: an update steps this rank's f32 weights and writes the same part of the copy that kernels read") {
  for (int level = 0; level <= 2; ++level) {
    CAPTURE(level);
    for (const Program& p : bf16(level)) {
      for (const Bucket& b : p.buckets) {
        REQUIRE(b.has_compute_copy());
        CHECK(b.weights_are_cut() == (level > 0));
        const Instruction& update = update_of(p, b);
        REQUIRE(update.outputs.size() == 4);
        const Operand &master = update.outputs.front(), &copy = update.outputs.back();
        CHECK(master.dtype == DType::f32);
        CHECK(master.offset == b.weights_offset);
        CHECK(copy.dtype == DType::bf16);
        CHECK(copy.shape == master.shape);
        CHECK(copy.shape == Shape{b.shard_elements()});
        CHECK(copy.offset == b.compute_offset + (level > 0 ? b.shard * copy.bytes() : 0));
      }
    }
  }
}

TEST_CASE("bf16: at level 3 each gather rounds this rank's f32 shard into its block, and no copy is kept") {
  for (const Program& p : bf16(3)) {
    for (const Bucket& b : p.buckets) {
      CHECK(!b.has_compute_copy());
      CHECK(b.weights_are_cut());
      CHECK(update_of(p, b).outputs.size() == 3);
    }
    for (const Instruction* gather : collectives(p, Purpose::weights)) {
      const auto writes_block = [&](const Instruction& i) {
        return i.opcode == Opcode::kernel && i.purpose == Purpose::weights && i.micro_batch == gather->micro_batch &&
               i.outputs[0].offset == gather->inputs[0].offset && i.outputs[0].shape == gather->inputs[0].shape;
      };
      const auto end = p.instructions.begin() + (gather - p.instructions.data());
      const auto round = std::find_if(p.instructions.begin(), end, writes_block);
      REQUIRE(round != end);
      CHECK(round->inputs[0].dtype == DType::f32);
      CHECK(round->outputs[0].dtype == DType::bf16);
    }
  }
}

TEST_CASE("bf16: weights are gathered in bf16, gradients are summed in f32") {
  for (int level = 1; level <= 3; ++level) {
    CAPTURE(level);
    for (const Program& p : bf16(level)) {
      CHECK(!collectives(p, Purpose::weights).empty());
      for (const Instruction* i : collectives(p, Purpose::weights)) CHECK(i->inputs[0].dtype == DType::bf16);
      for (const Instruction* i : collectives(p, Purpose::gradient)) CHECK(i->inputs[0].dtype == DType::f32);
    }
  }
}

TEST_CASE("bf16: memory lists the f32 weights separately, halves what kernels read, and leaves the optimizer alone") {
  for (int level = 0; level <= 3; ++level) {
    CAPTURE(level);
    const std::string cut = "parallel.optimizer_shard={level: " + std::to_string(level) + ", min_kb: 0}";
    const Memory half = precise_compiled({"precision=bf16", cut})[0].memory, whole = precise_compiled({cut})[0].memory;
    CHECK(whole.master == 0);
    CHECK(half.optimizer == whole.optimizer);
    CHECK(half.activations < whole.activations);
    const int64_t slack = 64 * 8;  // each range starts at a cache line
    CHECK(std::abs(half.gradients - whole.gradients) <= 2 * slack);
    CHECK(std::abs(2 * half.weights - (level == 3 ? 0 : whole.weights)) <= 2 * slack);
    const int64_t kept = level == 1 || level == 2 ? whole.weights / 4 : whole.weights;
    CHECK(std::abs(half.master - kept) <= slack);
    CHECK(half.arena() == precise_compiled({"precision=bf16", cut})[0].arena_bytes);
  }
}

TEST_CASE("bf16: weights that are never updated are kept only in bf16") {
  const JobSpec spec = parse_job(R"(
precision: bf16
dataset: {type: random, shape: [32], batch: 4}
network: [{name: a, type: dense, units: 64}]
print: [a]
)",
                                 "job.yaml");
  const Graph graph = build_graph(spec, data_and_label({32}, {}));
  const Plan plan = make_plan(graph, spec, CostModel());
  const Program p = compile_all(graph, plan, CostModel())[0];
  CHECK(p.memory.master == 0);
  CHECK(p.memory.weights == (32 * 64 + 64) * 2);
  for (const Variable& v : p.variables) CHECK(v.arena_offset == -1);
}

TEST_CASE("bf16: layers behind the loss's input have weights that are never updated, next to those that are") {
  for (int level = 0; level <= 3; ++level) {
    CAPTURE(level);
    for (const Program& p :
         precise_compiled({"precision=bf16", "loss={type: mse, input: a}", "dataset.label_shape=[64]",
                           "parallel.optimizer_shard={level: " + std::to_string(level) + ", min_kb: 0}"})) {
      int updated = 0, kept = 0;
      for (const Bucket& b : p.buckets) ++(b.weights_offset >= 0 ? updated : kept);
      CHECK(updated > 0);
      CHECK(kept > 0);
    }
  }
}

TEST_CASE("bf16: plain SGD is not fused into the kernels that compute gradients") {
  const std::vector<std::string> plain = {"optimizer={type: sgd, learning_rate: 0.1}", "launch.ranks=1",
                                          "network=[{type: dense, units: 64}, {type: relu}, {type: dense, units: 1}]"};
  CHECK(precise_compiled(plain)[0].buckets[0].updated_by_parts);
  std::vector<std::string> half = plain;
  half.emplace_back("precision=bf16");
  CHECK(!precise_compiled(half)[0].buckets[0].updated_by_parts);
}

TEST_CASE("verify_programs: an update that leaves out the bf16 copy, or writes another's part of it, is a fault") {
  for (int level = 0; level <= 2; ++level) {
    std::vector<Program> programs = bf16(level);
    for (Instruction& i : programs[1].instructions) {
      if (i.op == "adam_update") i.outputs.pop_back();
    }
    CHECK(!verify_programs(programs).empty());
    if (level == 0) continue;
    programs = bf16(level);
    for (Instruction& i : programs[1].instructions) {
      if (i.op == "adam_update") i.outputs.back().offset -= i.outputs.back().bytes();
    }
    CHECK(!verify_programs(programs).empty());
  }
}

TEST_CASE("gradients in bf16: half the bytes are kept, summed over ranks and taken by updates") {
  for (int level = 0; level <= 3; ++level) {
    CAPTURE(level);
    const std::string cut = "parallel.optimizer_shard={level: " + std::to_string(level) + ", min_kb: 0}";
    const std::string clip = "optimizer={type: adam, clip_norm: 1}";
    const std::vector<Program> whole = precise_compiled({"precision=bf16", cut, clip});
    const std::vector<Program> half = precise_compiled({"precision=bf16", "gradient_precision=bf16", cut, clip});
    const int64_t slack = 64 * 16;
    CHECK(std::abs(2 * half[0].memory.gradients - whole[0].memory.gradients) <= slack);
    CHECK(half[0].memory.optimizer + slack >= whole[0].memory.optimizer);
    for (const Program& p : half) {
      const auto summed = collectives(p, Purpose::gradient), before = collectives(whole[0], Purpose::gradient);
      REQUIRE(summed.size() == before.size());
      for (size_t i = 0; i < summed.size(); ++i) {
        CHECK(summed[i]->inputs[0].dtype == DType::bf16);
        CHECK(std::abs(2 * summed[i]->bytes() - before[i]->bytes()) <= slack);
      }
      for (const Instruction& i : p.instructions) {
        if (i.op == "adam_update" || i.op == "sum_squares") CHECK(i.inputs[0].dtype == DType::bf16);
        if (i.purpose == Purpose::weights) continue;  // level 3 rounds shards
        CHECK(i.op != "copy_slice");                  // the kernel that computes a gradient rounds it
      }
      CHECK(to_string(p).find("bf16 gradients @") != std::string::npos);
    }
  }
}

TEST_CASE("gradients in bf16: contributions of several micro-batches add up in f32, and are rounded once") {
  for (int level = 0; level <= 3; ++level) {
    CAPTURE(level);
    const std::vector<Program> programs =
        precise_compiled({"precision=bf16", "gradient_precision=bf16", "parallel.micro_batches=2",
                          "parallel.optimizer_shard={level: " + std::to_string(level) + ", min_kb: 0}"});
    for (const Program& p : programs) {
      for (const Instruction* i : collectives(p, Purpose::gradient)) CHECK(i->inputs[0].dtype == DType::bf16);
      for (const Instruction& i : p.instructions) {
        for (const Operand& out : i.outputs)
          if (out.accumulate) CHECK(out.dtype == DType::f32);
      }
      for (const Bucket& b : p.buckets) {
        CHECK((b.sums_offset >= 0) == (level < 2));
        CHECK(find_all(p, Opcode::kernel, "round grad." + b.name).size() == (level < 2 ? 1 : 0));
        CHECK(b.kept_type == (level < 2 ? DType::bf16 : DType::f32));
        CHECK(update_of(p, b).inputs[0].dtype == b.kept_type);
      }
    }
  }
}

TEST_CASE("gradients in bf16: contributions of several layers to one parameter add up in f32") {
  const std::string network =
      "network=[{name: a, type: dense, units: 32}, {type: relu}, {name: b, type: dense, units: 32, share: a}, "
      "{type: dense, units: 1}]";
  for (int level = 0; level <= 3; ++level) {
    CAPTURE(level);
    for (const Program& p :
         precise_compiled({"precision=bf16", "gradient_precision=bf16", network,
                           "parallel.optimizer_shard={level: " + std::to_string(level) + ", min_kb: 0}"})) {
      for (const Instruction& i : p.instructions) {
        for (const Operand& out : i.outputs)
          if (out.accumulate) CHECK(out.dtype == DType::f32);
      }
      for (const Instruction* i : collectives(p, Purpose::gradient)) CHECK(i->inputs[0].dtype == DType::bf16);
      for (const Bucket& b : p.buckets) CHECK(b.kept_type == DType::bf16);
    }
  }
}

TEST_CASE("verify_programs: gradients in a type other than the bucket's, or not rounded, are faults") {
  const auto faulty = [](int level, int micro_batches, const auto& change) {
    std::vector<Program> programs = precise_compiled(
        {"precision=bf16", "gradient_precision=bf16", "parallel.micro_batches=" + std::to_string(micro_batches),
         "parallel.optimizer_shard={level: " + std::to_string(level) + ", min_kb: 0}"});
    CHECK(verify_programs(programs).empty());
    for (Program& p : programs)
      for (Instruction& i : p.instructions) change(i);
    return !verify_programs(programs).empty();
  };
  const auto as_f32 = [](Operand& o) {  // the same number of bytes
    o.dtype = DType::f32;
    o.shape.back() /= 2;
  };
  for (int level = 0; level <= 3; ++level) {
    for (int micro_batches : {1, 2}) {
      CAPTURE(level);
      CAPTURE(micro_batches);
      CHECK(faulty(level, micro_batches, [&](Instruction& i) {
        if (i.purpose != Purpose::gradient) return;
        as_f32(i.inputs[0]);
        as_f32(i.outputs[0]);
      }));
      CHECK(faulty(level, micro_batches, [&](Instruction& i) {
        if (i.op == "adam_update" && i.inputs[0].dtype == DType::bf16) as_f32(i.inputs[0]);
        if (i.op == "adam_update" && level >= 2 && micro_batches > 1) i.inputs[0].dtype = DType::bf16;
      }));
    }
    if (level >= 2) continue;
    CHECK(faulty(level, 2, [](Instruction& i) {
      if (i.name.starts_with("round ")) i.opcode = Opcode::wait, i.inputs.clear(), i.outputs.clear();
    }));
  }
}

TEST_CASE("tf32: every product is marked, and nothing else is") {
  for (const std::string precision : {"fp32", "tf32"}) {
    int products = 0;
    const std::vector<Program> programs = precise_compiled({"precision=" + precision});
    for (const Instruction& i : programs[0].instructions) {
      const bool product = i.op == "matmul" || i.op == "matmul_weight_grad";
      products += product;
      CHECK(i.attrs.flag("tf32") == (product && precision == "tf32"));
    }
    CHECK(products == 5);
  }
}
