// The emulator's reports on small handwritten kernels: each kind of fault is found and named.
#include "tests/cuda_emulator/small_kernel.h"

namespace trainctl::emulator {
namespace {

/// Each thread writes its index to its word of `tile`, whose address it has in %r4.
constexpr const char* kStoreShared =
    "shl.b32 %r2, %r1, 2;\nmov.u32 %r3, tile;\nadd.s32 %r4, %r3, %r2;\nst.shared.u32 [%r4], %r1;\n";

}  // namespace

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
  // The block that arrives last adds the sums that the other blocks have left.
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

}  // namespace trainctl::emulator
