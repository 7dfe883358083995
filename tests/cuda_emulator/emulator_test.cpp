// Tests of instructions on the emulator in small handwritten kernels: their results must be right bit for bit.
#include <bit>

#include "tests/cuda_emulator/small_kernel.h"

namespace trainctl::emulator {

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
  // The matrices are A[row][k] = 8 row + k, B[k][column] = k - column with low bits that must not count, and C = 0.
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
