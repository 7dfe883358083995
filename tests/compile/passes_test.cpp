// Each pass separately: its result is proved over many jobs, and if a pass is broken on purpose the proof names it.
#include <doctest/doctest.h>

#include <algorithm>
#include <random>

#include "engine/base/error.h"
#include "engine/compile/compiler.h"
#include "engine/compile/report/program_so_far.h"
#include "tests/compile/jobs.h"
#include "tests/compile/pass_proof.h"

using namespace trainctl;

namespace {

using Words = std::vector<std::string>;

std::string fault_text(const Job& j, std::span<const Pass> list = passes()) {
  const auto fault = first_pass_fault(j.graph, j.plan, CostModel(), list);
  return fault ? fault->pass + ": " + fault->text : "";
}

/// A plan's settings, drawn from a seed.
Words drawn_overrides(std::mt19937& random) {
  const auto pick = [&random](const Words& from) { return from[random() % from.size()]; };
  const std::string stages = pick({"1", "1", "2", "3"});
  const std::string a_stage = pick({"1", "2", "3", "4", "6"});
  Words overrides = {pick({"parallel.mode=data_parallel", "parallel.mode=semi_auto_parallel"}),
                     "parallel.stages=" + stages,
                     "launch.ranks=" + std::to_string(std::stoi(stages) * std::stoi(a_stage)),
                     "parallel.micro_batches=" + pick({"1", "2", "4"}),
                     pick(kLevels),
                     pick(kSchedules),
                     "precision=" + pick({"fp32", "tf32", "bf16"})};
  if (overrides.back() == "precision=bf16") overrides.push_back("gradient_precision=" + pick({"fp32", "bf16"}));
  if (random() % 3 == 0) overrides.emplace_back("parallel.recompute=['*a*']");
  if (random() % 2 == 0) overrides.emplace_back("optimizer={type: sgd, learning_rate: 0.1}");
  return overrides;
}

/// Two stages of two ranks, with sends, reductions, sharded updates and gathers.
Job pipeline() {
  return job("deep_mlp", {"parallel.mode=semi_auto_parallel", "launch.ranks=4", "parallel.stages=2",
                          "parallel.micro_batches=4", "parallel.optimizer_shard={level: 1, min_kb: 0}"});
}

std::vector<Pass> with_pass_after(std::string_view name, void (*broken)(Compiler&)) {
  std::vector<Pass> list(passes().begin(), passes().end());
  const auto at = std::find_if(list.begin(), list.end(), [&](const Pass& pass) { return pass.name == name; });
  REQUIRE(at != list.end());
  list.insert(at + 1, Pass{"broken", "breaks the program on purpose", Pass::Need::optional, broken});
  return list;
}

/// The first instruction for which `is` returns true; -1: none, and the pass does nothing on this rank.
template <class F>
int first(const Compiler& c, F is) {
  const auto found = std::find_if(c.code.begin(), c.code.end(), is);
  return found == c.code.end() ? -1 : static_cast<int>(found - c.code.begin());
}

bool is_opcode(const VirtualInstruction& v, Opcode opcode) { return v.code.opcode == opcode; }

/// A kernel whose output the next instruction reads.
int producer_before_its_reader(const Compiler& c) {
  for (size_t i = 0; i + 1 < c.code.size(); ++i) {
    const auto& made = c.code[i].outputs;
    const auto& read = c.code[i + 1].inputs;
    if (!is_persistent(c.buffers[made.empty() ? 0 : made[0]].kind) && !made.empty() &&
        std::find(read.begin(), read.end(), made[0]) != read.end())
      return static_cast<int>(i);
  }
  return -1;
}

struct Break {
  const char* what;
  const char* after;
  void (*pass)(Compiler&);
};

const std::vector<Break> kBreaks = {
    {"two instructions are swapped, so that one reads before the other writes", "fuse_products",
     [](Compiler& c) {
       const int i = producer_before_its_reader(c);
       REQUIRE(i >= 0);
       std::swap(c.code[i], c.code[i + 1]);
     }},
    {"a read is moved in front of everything", "order_gradients",
     [](Compiler& c) {
       const int i =
           first(c, [](const VirtualInstruction& v) { return is_kernel(v, *find_kernel("matmul_weight_grad")); });
       REQUIRE(i > 0);
       std::rotate(c.code.begin(), c.code.begin() + i, c.code.begin() + i + 1);
     }},
    {"an operand goes beyond its buffer", "lower_stage",
     [](Compiler& c) {
       const int i = first(c, [](const VirtualInstruction& v) { return is_opcode(v, Opcode::kernel); });
       c.code[i].code.outputs[0].offset += 64;
     }},
    {"a gradient is written where another parameter's is", "fuse_bias_grad",
     [](Compiler& c) {
       const int i =
           first(c, [](const VirtualInstruction& v) { return is_kernel(v, *find_kernel("matmul_weight_grad")); });
       REQUIRE(i >= 0);
       Operand& gradient = c.code[i].code.outputs[0];
       gradient.offset = gradient.offset >= 64 ? gradient.offset - 64 : gradient.offset + 64;
     }},
    {"a kernel reads another tensor of the same size", "fuse_elementwise",
     [](Compiler& c) {
       for (VirtualInstruction& v : c.code) {
         if (v.code.opcode != Opcode::kernel || v.inputs.empty() || is_persistent(c.buffers[v.inputs[0]].kind))
           continue;
         for (BufferId b = 0; b < static_cast<BufferId>(c.buffers.size()); ++b) {
           if (b == v.inputs[0] || c.buffers[b].kind != BufferKind::activation ||
               c.buffers[b].bytes != c.buffers[v.inputs[0]].bytes)
             continue;
           v.inputs[0] = b;
           return;
         }
       }
       FAIL("no two buffers of one size");
     }},
    {"a later contribution to a gradient overwrites the earlier ones", "fuse_update",
     [](Compiler& c) {
       const int i = first(c, [](const VirtualInstruction& v) {
         return is_opcode(v, Opcode::kernel) && v.code.phase == Phase::backward && !v.code.outputs.empty() &&
                v.code.outputs[0].accumulate;
       });
       REQUIRE(i >= 0);
       c.code[i].code.outputs[0].accumulate = false;
     }},
    {"one rank does not reduce a gradient", "update_early",
     [](Compiler& c) {
       if (c.rank == 1) c.code.erase(c.code.begin() + first(c, reduces));
     }},
    {"no rank reduces a gradient", "gather_ahead",
     [](Compiler& c) { c.code.erase(c.code.begin() + first(c, reduces)); }},
    {"one rank issues two collectives in the other order", "make_in_pieces",
     [](Compiler& c) {
       if (c.rank != 0) return;
       std::vector<size_t> found;
       for (size_t i = 0; i < c.code.size(); ++i)
         if (is_opcode(c.code[i], Opcode::collective)) found.push_back(i);
       REQUIRE(found.size() >= 2);
       std::swap(c.code[found[0]], c.code[found[1]]);
     }},
    {"a send goes to a rank that expects none", "lower_stage",
     [](Compiler& c) {
       if (c.rank != 0) return;
       const int i = first(c, [](const VirtualInstruction& v) { return is_opcode(v, Opcode::send); });
       c.code[i].code.peer = 1;
     }},
    {"a load brings another micro-batch", "group_launches",
     [](Compiler& c) {
       std::vector<size_t> found;
       for (size_t i = 0; i < c.code.size(); ++i)
         if (is_opcode(c.code[i], Opcode::load)) found.push_back(i);
       if (found.size() >= 2) std::swap(c.code[found[0]].code.micro_batch, c.code[found[1]].code.micro_batch);
     }},
    {"nothing waits for the last sends", "order_sends",
     [](Compiler& c) {
       std::erase_if(c.code, [](const VirtualInstruction& v) { return v.code.opcode == Opcode::wait; });
     }},
    {"a parameter is not updated", "fuse_loss",
     [](Compiler& c) {
       const int i = first(c, [](const VirtualInstruction& v) { return is_kernel(v, *find_kernel("sgd_update")); });
       REQUIRE(i >= 0);
       c.code.erase(c.code.begin() + i);
     }},
    {"an output takes the buffer of a tensor that is read again", "reuse_buffers",
     [](Compiler& c) {
       const int i = producer_before_its_reader(c);
       REQUIRE(i >= 0);
       for (size_t late = i + 2; late < c.code.size(); ++late) {
         const auto& read = c.code[late].inputs;
         if (std::find(read.begin(), read.end(), c.code[i].outputs[0]) == read.end()) continue;
         for (size_t between = i + 1; between < late; ++between) {
           VirtualInstruction& v = c.code[between];
           if (v.code.opcode != Opcode::kernel || v.outputs.empty() || is_persistent(c.buffers[v.outputs[0]].kind) ||
               v.code.outputs[0].bytes() > c.buffers[c.code[i].outputs[0]].bytes || v.code.outputs[0].offset != 0)
             continue;
           const BufferId from = v.outputs[0], to = c.code[i].outputs[0];
           for (VirtualInstruction& all : c.code) {
             std::replace(all.inputs.begin(), all.inputs.end(), from, to);
             std::replace(all.outputs.begin(), all.outputs.end(), from, to);
           }
           return;
         }
       }
     }},
    {"two buffers that live at the same time are at one place", "place_buffers",
     [](Compiler& c) {
       const int i = producer_before_its_reader(c);
       REQUIRE(i >= 0);
       const VirtualInstruction& reader = c.code[i + 1];
       for (VirtualBuffer& buffer : c.buffers) {
         if (&buffer == &c.buffers[reader.outputs[0]] && reader.outputs[0] != c.code[i].outputs[0])
           buffer.offset = c.buffers[c.code[i].outputs[0]].offset;
       }
     }},
    {"an instruction does not wait for another stream", "order_streams",
     [](Compiler& c) {
       for (Instruction& code : c.program.instructions) {
         if (code.opcode == Opcode::collective && !code.waits.empty()) return code.waits.clear();
       }
     }},
    {"an instruction has another offset in the arena", "order_streams",
     [](Compiler& c) {
       for (Instruction& code : c.program.instructions) {
         if (code.opcode != Opcode::kernel || code.inputs.empty()) continue;
         code.inputs[0].offset = (code.inputs[0].offset + 64) % c.program.arena_bytes;
         return;
       }
     }},
};

}  // namespace

TEST_CASE("the result of each pass is proved separately, over random plans of every network") {
  std::mt19937 random(12);
  int proved = 0;
  for (const std::string& name : kNetworks) {
    for (int draw = 0; draw < 16; ++draw) {
      const Words overrides = drawn_overrides(random);
      std::string said = name;
      for (const std::string& o : overrides) said += " " + o;
      CAPTURE(said);
      try {
        const Job j = job(name, overrides);
        CHECK(fault_text(j) == "");
        ++proved;
      } catch (const SpecError&) {
        continue;  // impossible to plan
      }
    }
  }
  MESSAGE(proved << " jobs proved");
  CHECK(proved >= 50);
}

TEST_CASE("a pass that breaks the program is named, regardless of the passes after it") {
  const Job j = pipeline();
  REQUIRE(fault_text(j) == "");
  for (const Break& broken : kBreaks) {
    CAPTURE(std::string(broken.what));
    const auto fault =
        first_pass_fault(j.graph, j.plan, CostModel(), with_pass_after(broken.after, broken.pass));
    REQUIRE(fault.has_value());
    INFO(fault->text);
    CHECK(fault->pass == "broken");
    CHECK(fault->text.find("rank") != std::string::npos);
  }
}

TEST_CASE("the last pass ends in the result of compile, and names are unique") {
  const Job j = pipeline();
  const CostModel cost;
  const Program program = compile(j.graph, j.plan, cost, 1);
  Compiler c(j.graph, j.plan, cost, 1);
  std::vector<std::string> seen;
  run_passes(passes(), c, [&](const Pass& pass, const Compiler&) { seen.emplace_back(pass.name); });
  CHECK(to_string(c) == to_string(program));
  CHECK(size_so_far(c).bytes == program.arena_bytes);
  CHECK(size_so_far(c).instructions == program.instructions.size());
  CHECK(seen.size() == passes().size());
  std::sort(seen.begin(), seen.end());
  CHECK(std::adjacent_find(seen.begin(), seen.end()) == seen.end());
  CHECK(passes_up_to("no such pass").empty());
  CHECK(passes_up_to(passes().back().name).size() == passes().size());
}

TEST_CASE(
    "programs that differ in an attribute of a kernel, or in the rank that a broadcast sends from, print differently") {
  const Job j = job("hybrid_broadcast", {});
  const Program program = compile(j.graph, j.plan, CostModel(), 0);
  int attributes = 0, broadcasts = 0;
  for (size_t k = 0; k < program.instructions.size(); ++k) {
    Program other = program;
    Instruction& changed = other.instructions[k];
    CAPTURE(changed.name);
    for (const auto& [name, value] : program.instructions[k].attrs) {
      changed.attrs.erase(name);
      CHECK(to_string(other) != to_string(program));
      changed.attrs.set(name, value);
      ++attributes;
    }
    if (changed.opcode != Opcode::collective || changed.collective != Collective::broadcast) continue;
    changed.root = changed.root == 0 ? 1 : 0;
    CHECK(to_string(other) != to_string(program));
    ++broadcasts;
  }
  CHECK(attributes > 0);
  CHECK(broadcasts > 0);
}

TEST_CASE(
    "a program without offsets prints the buffer of each operand, and has as many instructions as one with offsets") {
  const Job j = pipeline();
  const CostModel cost;
  Compiler c(j.graph, j.plan, cost, 0);
  run_passes(passes_up_to("reuse_buffers"), c);
  const std::string text = to_string(c);
  CHECK(text.find("unplaced buffers") != std::string::npos);
  CHECK(text.find(" b0@0+") != std::string::npos);
  const int64_t apart = size_so_far(c).bytes;
  Compiler placed(j.graph, j.plan, cost, 0);
  run_passes(passes_up_to("place_buffers"), placed);
  CHECK(to_string(placed).find(" b0@0+") == std::string::npos);
  CHECK(size_so_far(placed).instructions == size_so_far(c).instructions);
  CHECK(size_so_far(placed).bytes <= apart + 64 * static_cast<int64_t>(c.buffers.size()));
}
