// The emulator itself, on small handwritten kernels: faults are found and named correctly.
#include <doctest/doctest.h>

#include <bit>
#include <cstring>
#include <vector>

#include "tools/cuda_emulator/faults.h"
#include "tools/cuda_emulator/machine.h"
#include "tools/cuda_emulator/module.h"

namespace trainctl::emulator {
namespace {

/// A kernel `k` with one pointer parameter in %rd1, the thread's index in %r1, and the address of its word in %rd2.
std::string kernel(const std::string& body, const std::string& variables = "") {
  return ".version 9.0\n.target sm_90a\n.address_size 64\n" + variables +
         "\n.visible .entry k(.param .u64 k_param_0)\n{\n.reg .pred %p<9>;\n.reg .b32 %r<99>;\n.reg .f32 %f<99>;\n.reg "
         ".b64 %rd<9>;\n"
         "ld.param.u64 %rd3, [k_param_0];\ncvta.to.global.u64 %rd1, %rd3;\nmov.u32 %r1, %tid.x;\nmul.wide.u32 %rd4, "
         "%r1, 4;\n"
         "add.s64 %rd2, %rd1, %rd4;\n" +
         body + "\nret;\n}\n";
}

/// An array of words in device memory.
class Words {
 public:
  explicit Words(size_t n) : words_(static_cast<uint32_t*>(global_memory().allocate(n * 4))), n_(n) {}
  Words(const Words&) = delete;
  Words& operator=(const Words&) = delete;
  ~Words() { global_memory().free(words_); }
  uint32_t& operator[](size_t i) { return words_[i]; }
  void set_written() {
    std::memset(global_memory().find(reinterpret_cast<uint64_t>(words_))->written.get(), 1, n_ * 4);
  }
  void* data() { return words_; }

 private:
  uint32_t* words_;
  size_t n_;
};

/// Returns the text of a Trap, or all faults; empty if there are none.
std::string run(const std::string& ptx, Words& memory, uint32_t threads, uint32_t blocks = 1, uint32_t cluster = 1) {
  static uint64_t number = 1000000;
  Module module(ptx);
  void* parameter = memory.data();
  Launch launch;
  launch.kernel = &module.kernel("k");
  launch.grid.x = blocks;
  launch.block.x = threads;
  launch.cluster = cluster;
  launch.parameters = reinterpret_cast<const std::byte*>(&parameter);
  launch.number = ++number;
  forget_faults();
  try {
    run_launch(launch);
  } catch (const Trap& trap) {
    forget_faults();
    return trap.what();
  }
  return take_faults();
}

bool tells(const std::string& text, const std::string& what) {
  CAPTURE(text);
  CHECK(text.find(what) != std::string::npos);
  return text.find(what) != std::string::npos;
}

constexpr const char* kShared = ".shared .align 16 .b8 tile[1024];";
constexpr const char* kStoreShared =
    "shl.b32 %r2, %r1, 2;\nmov.u32 %r3, tile;\nadd.s32 %r4, %r3, %r2;\nst.shared.u32 [%r4], %r1;\n";

}  // namespace

TEST_CASE("emulator: each thread of each block writes the value that it computes") {
  Words words(64);
  const std::string ptx = kernel(
      "mov.u32 %r2, %ctaid.x;\nmov.u32 %r3, %ntid.x;\nmad.lo.s32 %r4, %r2, %r3, %r1;\n"
      "mul.wide.u32 %rd5, %r4, 4;\nadd.s64 %rd6, %rd1, %rd5;\nshl.b32 %r5, %r4, 1;\nst.global.u32 [%rd6], %r5;");
  CHECK(run(ptx, words, 16, 4) == "");
  for (uint32_t i = 0; i < 64; ++i) CHECK(words[i] == 2 * i);
}

TEST_CASE("emulator: lanes that diverge converge again") {
  Words words(32);
  const std::string ptx = kernel(
      "mov.u32 %r2, 0;\nand.b32 %r3, %r1, 3;\n$again:\nadd.s32 %r2, %r2, %r1;\nadd.s32 %r3, %r3, -1;\n"
      "setp.ge.s32 %p1, %r3, 0;\n@%p1 bra $again;\nshfl.sync.bfly.b32 %r4|%p2, %r2, 1, 31, -1;\nst.global.u32 [%rd2], "
      "%r4;");
  CHECK(run(ptx, words, 32) == "");
  for (uint32_t i = 0; i < 32; ++i) CHECK(words[i] == (i ^ 1) * (((i ^ 1) & 3) + 1));
}

TEST_CASE("emulator: prmt picks bytes of two numbers by selectors, or copies their signs") {
  Words words(4);
  const std::string ptx = kernel(
      "mov.u32 %r2, 0x83828180;\nmov.u32 %r3, 0x07060504;\nprmt.b32 %r4, %r2, %r3, 0x7610;\n"
      "st.global.u32 [%rd1], %r4;\nprmt.b32 %r4, %r2, %r3, 0x2104;\nst.global.u32 [%rd1+4], %r4;\n"
      "prmt.b32 %r4, %r2, %r3, 0xf801;\nst.global.u32 [%rd1+8], %r4;");
  CHECK(run(ptx, words, 1) == "");
  CHECK(words[0] == 0x07068180);
  CHECK(words[1] == 0x82818004);
  CHECK(words[2] == 0x00ff8081);
}

TEST_CASE("emulator: bfi puts low bits of a number into another one, of 32 or 64 bits") {
  Words words(4);
  const std::string ptx = kernel(
      "mov.u32 %r2, 0x000000ab;\nmov.u32 %r3, 0x11223344;\nbfi.b32 %r4, %r2, %r3, 8, 8;\nst.global.u32 [%rd1], %r4;\n"
      "mov.u64 %rd2, 0xab;\nmov.u64 %rd3, 0x1122334455667788;\nbfi.b64 %rd2, %rd2, %rd3, 40, 8;\n"
      "st.global.u64 [%rd1+8], %rd2;");
  CHECK(run(ptx, words, 1) == "");
  CHECK(words[0] == 0x1122ab44);
  CHECK(words[2] == 0x55667788);
  CHECK(words[3] == 0x1122ab44);
}

TEST_CASE("emulator: a test of an mbarrier does not wait") {
  Words words(2);
  const std::string ptx = kernel(
      "mov.u32 %r2, tile;\nmov.u32 %r3, 0;\nmov.u32 %r5, 1;\nmbarrier.init.shared::cta.b64 [%r2], %r5;\n"
      "mbarrier.test_wait.parity.shared::cta.b64 %p1, [%r2], %r3;\nselp.u32 %r4, 1, 0, %p1;\n"
      "st.global.u32 [%rd1], %r4;\nmbarrier.arrive.expect_tx.shared::cta.b64 _, [%r2], %r3;\n"
      "mbarrier.test_wait.parity.shared::cta.b64 %p1, [%r2], %r3;\nselp.u32 %r4, 1, 0, %p1;\n"
      "st.global.u32 [%rd1+4], %r4;",
      kShared);
  CHECK(run(ptx, words, 1) == "");
  CHECK(words[0] == 0);
  CHECK(words[1] == 1);
}

TEST_CASE("emulator: an access outside of its allocation is reported") {
  Words words(32);
  tells(run(kernel("st.global.u32 [%rd2+4], %r1;"), words, 32), "out of bounds: write of 4 bytes");
  tells(run(kernel("st.global.u32 [%rd2+2], %r1;"), words, 32), "misaligned address");
  tells(run(kernel("mov.u32 %r3, tile;\nst.shared.u32 [%r3+1024], %r1;", kShared), words, 1),
        "out of bounds: write of 4 bytes of shared");
}

TEST_CASE("emulator: a read of unwritten memory is reported") {
  Words words(64);
  words[0] = 0;
  tells(run(kernel("ld.global.u32 %r2, [%rd2];\nst.global.u32 [%rd2+128], %r2;"), words, 32),
        "unwritten: read of 4 bytes of global memory");
  words.set_written();
  CHECK(run(kernel("ld.global.u32 %r2, [%rd2];\nst.global.u32 [%rd2+128], %r2;"), words, 32) == "");
  tells(run(kernel("mov.u32 %r3, tile;\nld.shared.u32 %r2, [%r3];\nst.global.u32 [%rd2], %r2;", kShared), words, 32),
        "unwritten: read of shared");
}

TEST_CASE("emulator: threads of two warps that share memory without a barrier race") {
  Words words(64);
  const std::string read =
      "xor.b32 %r5, %r2, 128;\nadd.s32 %r6, %r3, %r5;\nld.shared.u32 %r7, [%r6];\nst.global.u32 [%rd2], %r7;";
  CHECK(run(kernel(kStoreShared + std::string("bar.sync 0;\n") + read, kShared), words, 64) == "");
  for (uint32_t i = 0; i < 64; ++i) CHECK(words[i] == (i ^ 32));
  tells(run(kernel(kStoreShared + read, kShared), words, 64), "shared memory at");
}

TEST_CASE("emulator: lanes of a warp that share memory without a barrier race") {
  Words words(32);
  const std::string read =
      "xor.b32 %r5, %r2, 4;\nadd.s32 %r6, %r3, %r5;\nld.shared.u32 %r7, [%r6];\nst.global.u32 [%rd2], %r7;";
  CHECK(run(kernel(kStoreShared + std::string("bar.warp.sync -1;\n") + read, kShared), words, 32) == "");
  tells(run(kernel(kStoreShared + read, kShared), words, 32), "race: read of shared memory");
}

TEST_CASE("emulator: blocks that share a word of global memory race, unless a fence and an atomic order them") {
  Words words(64);
  words.set_written();
  // The last block to arrive adds up what the others left.
  const std::string own =
      "mov.u32 %r2, %ctaid.x;\nmul.wide.u32 %rd5, %r2, 4;\nadd.s64 %rd6, %rd1, %rd5;\nst.global.u32 [%rd6+64], %r2;\n";
  const std::string last =
      "setp.ne.s32 %p1, %r7, 3;\n@%p1 bra $end;\nld.global.u32 %r8, [%rd1+64];\nld.global.u32 %r9, [%rd1+76];\n"
      "add.s32 %r8, %r8, %r9;\nst.global.u32 [%rd1+128], %r8;\n$end:\n";
  words[0] = 0;
  CHECK(run(kernel(own + "membar.gl;\natom.global.add.u32 %r7, [%rd1], 1;\n" + last), words, 1, 4) == "");
  CHECK(words[32] == 3);
  words[0] = 0;
  tells(run(kernel(own + "atom.global.add.u32 %r7, [%rd1], 1;\n" + last), words, 1, 4), "another block");
  tells(run(kernel("mov.u32 %r2, %ctaid.x;\nst.global.u32 [%rd1], %r2;"), words, 1, 4), "race: write to global memory");
}

TEST_CASE("emulator: a warp that misses a barrier is reported") {
  Words words(64);
  tells(run(kernel("setp.lt.u32 %p1, %r1, 8;\n@%p1 bra $a;\nbar.sync 0;\nbra.uni $b;\n$a:\nbar.sync 0;\n$b:\n"), words,
            32),
        "divergent barrier");
  tells(run(kernel("setp.ne.s32 %p1, %r1, 0;\n@%p1 bra $a;\nshfl.sync.bfly.b32 %r4|%p2, %r1, 1, 31, -1;\nbar.sync "
                   "0;\nret;\n$a:\nbar.sync 0;\n"),
            words, 32),
        "deadlock");
}

TEST_CASE("emulator: the data of an asynchronous copy is unwritten until a wait for the copy") {
  Words words(64);
  words.set_written();
  for (uint32_t i = 0; i < 64; ++i) words[i] = i;
  const std::string begin =
      "shl.b32 %r2, %r1, 2;\nmov.u32 %r3, tile;\nadd.s32 %r4, %r3, %r2;\nmov.u32 %r8, 4;\n"
      "cp.async.ca.shared.global [%r4], [%rd2], 4, %r8;\ncp.async.commit_group;\n";
  const std::string end = "ld.shared.u32 %r7, [%r4];\nadd.s32 %r7, %r7, 1;\nst.global.u32 [%rd2+128], %r7;";
  CHECK(run(kernel(begin + "cp.async.wait_group 0;\n" + end, kShared), words, 32) == "");
  for (uint32_t i = 0; i < 32; ++i) CHECK(words[32 + i] == i + 1);
  tells(run(kernel(begin + end, kShared), words, 32), "unwritten");
}

TEST_CASE("emulator: an mbarrier counts the bytes that blocks of a cluster send to each other") {
  Words words(64);
  const std::string ptx = kernel(
      "mov.u32 %r10, %cluster_ctarank;\nmov.u32 %r3, tile;\nsetp.ne.s32 %p1, %r1, 0;\n@%p1 bra $ready;\n"
      "mbarrier.init.shared::cta.b64 [%r3], 1;\nmbarrier.arrive.expect_tx.shared::cta.b64 _, [%r3], 128;\n$ready:\n"
      "fence.mbarrier_init.release.cluster;\nbarrier.cluster.arrive.relaxed.aligned;\nbarrier.cluster.wait.acquire."
      "aligned;\n"
      "xor.b32 %r11, %r10, 1;\nshl.b32 %r2, %r1, 2;\nadd.s32 %r4, %r3, %r2;\nadd.s32 %r4, %r4, 128;\n"
      "mapa.shared::cluster.u32 %r12, %r4, %r11;\nmapa.shared::cluster.u32 %r13, %r3, %r11;\n"
      "mad.lo.s32 %r14, %r10, 100, %r1;\nmov.b32 %f1, %r14;\n"
      "st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.f32 [%r12], %f1, [%r13];\n"
      "mov.u32 %r15, 0;\n$again:\nmbarrier.try_wait.parity.shared::cta.b64 %p2, [%r3], %r15;\n@!%p2 bra $again;\n"
      "ld.shared.u32 %r7, [%r4];\nshl.b32 %r16, %r10, 5;\nadd.s32 %r17, %r16, %r1;\nmul.wide.u32 %rd5, %r17, 4;\n"
      "add.s64 %rd6, %rd1, %rd5;\nst.global.u32 [%rd6], %r7;",
      kShared);
  CHECK(run(ptx, words, 32, 2, 2) == "");
  for (uint32_t i = 0; i < 64; ++i) CHECK(words[i] == (i < 32 ? 100 + i : i - 32));
}

TEST_CASE("emulator: a product on tensor cores ignores the lowest bits of its operands") {
  Words words(32 * 4);
  std::string set;
  // A[row][k] = 8 row + k, B[k][column] = k - column with low bits that do not count, C = 0.
  set += "shr.u32 %r20, %r1, 2;\nand.b32 %r21, %r1, 3;\n";
  for (int i = 0; i < 4; ++i) {
    set += "add.s32 %r22, %r20, " + std::to_string(i % 2 * 8) + ";\nadd.s32 %r23, %r21, " + std::to_string(i / 2 * 4) +
           ";\n";
    set += "shl.b32 %r24, %r22, 3;\nadd.s32 %r25, %r24, %r23;\ncvt.rn.f32.s32 %f1, %r25;\nmov.b32 %r" +
           std::to_string(30 + i) + ", %f1;\n";
  }
  for (int i = 0; i < 2; ++i) {
    set += "add.s32 %r23, %r21, " + std::to_string(i * 4) +
           ";\nsub.s32 %r25, %r23, %r20;\ncvt.rn.f32.s32 %f1, %r25;\nmov.b32 %r" + std::to_string(40 + i) +
           ", %f1;\nor.b32 %r" + std::to_string(40 + i) + ", %r" + std::to_string(40 + i) + ", 4095;\n";
  }
  set +=
      "mov.f32 %f10, 0f00000000;\nmma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%f20, %f21, %f22, %f23}, {%r30, "
      "%r31, %r32, %r33}, "
      "{%r40, %r41}, {%f10, %f10, %f10, %f10};\nmul.wide.u32 %rd5, %r1, 16;\nadd.s64 %rd6, %rd1, "
      "%rd5;\nst.global.v4.f32 [%rd6], {%f20, %f21, %f22, %f23};";
  CHECK(run(kernel(set), words, 32) == "");
  for (int lane = 0; lane < 32; ++lane) {
    for (int i = 0; i < 4; ++i) {
      const int row = lane / 4 + i / 2 * 8, column = lane % 4 * 2 + i % 2;
      float sum = 0;
      for (int k = 0; k < 8; ++k) sum += static_cast<float>((row * 8 + k) * (k - column));
      CHECK(std::bit_cast<float>(words[static_cast<size_t>(lane * 4 + i)]) == sum);
    }
  }
}

}  // namespace trainctl::emulator
