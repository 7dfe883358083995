// Matrix products with oneDNN: prepared once, run with prebuilt arguments and our own scratch memory. Used on
// processors that tiles.h does not support, and as the reference of tests and benchmarks.
#include <cstdlib>
#include <memory>
#include <oneapi/dnnl/dnnl.hpp>
#include <string>

#include "engine/base/error.h"
#include "engine/ops/matmul/product_cpu.h"

extern "C" void omp_set_num_threads(int threads);  // libgomp's, which oneDNN uses; per thread

namespace trainctl::cpu {
namespace {

using ProductDims = dnnl::memory::dims;

dnnl::memory::desc matrix(const Product& p, int64_t rows, int64_t cols, bool transposed, int64_t step) {
  const ProductDims strides = transposed ? ProductDims{1, rows} : ProductDims{cols, 1};
  if (p.batch == 1) return {ProductDims{rows, cols}, dnnl::memory::data_type::f32, strides};
  return {ProductDims{step == 0 ? 1 : p.batch, rows, cols}, dnnl::memory::data_type::f32,
          ProductDims{std::max<int64_t>(step, rows * cols), strides[0], strides[1]}};
}

/// Everything that a run needs, at fixed addresses.
struct Prepared {
  dnnl::matmul primitive;
  dnnl::stream stream;
  std::vector<dnnl::memory> memories;
  std::unique_ptr<void, void (*)(void*)> scratch{nullptr, std::free};
  std::vector<dnnl_exec_arg_t> args;

  void bind(int arg, const dnnl::memory::desc& desc, const void* data) {
    memories.emplace_back(desc, stream.get_engine(), const_cast<void*>(data));
    args.push_back({arg, memories.back().get()});
  }
};

std::shared_ptr<Prepared> prepare_with_onednn(const Product& p) {
  static const dnnl::engine engine(dnnl::engine::kind::cpu, 0);
  dnnl::primitive_attr attr;
  attr.set_scratchpad_mode(dnnl::scratchpad_mode::user);
  dnnl::post_ops after;
  if (p.accumulate) after.append_sum(1.0f);
#if DNNL_VERSION_MAJOR >= 3
  if (p.relu) after.append_eltwise(dnnl::algorithm::eltwise_relu, 0.0f, 0.0f);
#else
  if (p.relu) after.append_eltwise(1.0f, dnnl::algorithm::eltwise_relu, 0.0f, 0.0f);
#endif
  attr.set_post_ops(after);
  const auto a = matrix(p, p.m, p.k, p.transpose_a, p.a_step);
  const auto b = matrix(p, p.k, p.n, p.transpose_b, p.b_step);
  const auto c = matrix(p, p.m, p.n, false, p.c_step);
  const dnnl::memory::desc bias(p.batch == 1 ? ProductDims{1, p.n} : ProductDims{1, 1, p.n},
                                dnnl::memory::data_type::f32,
                                p.batch == 1 ? ProductDims{p.n, 1} : ProductDims{p.n, p.n, 1});
#if DNNL_VERSION_MAJOR >= 3
  const dnnl::matmul::primitive_desc made = p.bias != nullptr
                                                ? dnnl::matmul::primitive_desc(engine, a, b, bias, c, attr)
                                                : dnnl::matmul::primitive_desc(engine, a, b, c, attr);
#else
  const auto desc = p.bias != nullptr ? dnnl::matmul::desc(a, b, bias, c) : dnnl::matmul::desc(a, b, c);
  const dnnl::matmul::primitive_desc made(desc, attr, engine);
#endif

  auto prepared = std::make_shared<Prepared>();
  prepared->primitive = dnnl::matmul(made);
  prepared->stream = dnnl::stream(engine);
  prepared->bind(DNNL_ARG_SRC, a, p.a);
  prepared->bind(DNNL_ARG_WEIGHTS, b, p.b);
  prepared->bind(DNNL_ARG_DST, c, p.c);
  if (p.bias != nullptr) prepared->bind(DNNL_ARG_BIAS, bias, p.bias);
  const size_t scratch = made.scratchpad_desc().get_size();
  if (scratch > 0) {
    prepared->scratch.reset(std::aligned_alloc(64, (scratch + 63) / 64 * 64));
    prepared->bind(DNNL_ARG_SCRATCHPAD, made.scratchpad_desc(), prepared->scratch.get());
  }
  return prepared;
}

}  // namespace

CpuKernel prepare_product_with_onednn(const Product& p) {
  if (p.m == 0 || p.n == 0 || p.batch == 0) return [] {};
  check(p.k > 0, "a matrix product needs k > 0");
  omp_set_num_threads(p.threads);
  return [prepared = prepare_with_onednn(p), threads = p.threads] {
    omp_set_num_threads(threads);
    const dnnl_status_t status = dnnl_primitive_execute(prepared->primitive.get(), prepared->stream.get(),
                                                        static_cast<int>(prepared->args.size()), prepared->args.data());
    check(status == dnnl_success, "oneDNN could not run a matmul");
  };
}

}  // namespace trainctl::cpu
