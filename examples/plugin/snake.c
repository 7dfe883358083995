/* A plugin with two layer types for trainctl; docs/plugins.md explains each part.
 *
 *   snake    y = x + power * sin(a x)^2 / a, with one trained a per feature (Ziyin et al., 2020)
 *   row_dot  y[r] = the sum over n of x[r, n] * z[r, n]
 *
 * It is valid C and C++. With SNAKE_CUDA defined, snake has the CUDA kernels of snake_cuda.cu as well.
 *
 *     cc -O2 -shared -fPIC -o snake.so snake.c -lm
 *     trainctl check --plugin ./snake.so
 *     trainctl run job.yaml
 */
#include <math.h>
#include <string.h>

#include "trainctl_plugin.h"
#ifdef SNAKE_CUDA
#include "snake_cuda.h"
#endif

/* snake. x is [.., n], a is [n]. */

static int64_t last_dim(const trainctl_shape* shape) { return shape->dims[shape->ndim - 1]; }

static int snake_parameter_shapes(const trainctl_call* call, trainctl_shape* parameters) {
  const trainctl_shape* x = &call->inputs[0].shape;
  if (x->ndim < 2) return trainctl_fail(call, "expected an input with at least 2 dims");
  parameters[0].ndim = 1;
  parameters[0].dims[0] = last_dim(x);
  return 0;
}

/* "abn,n->abn": features and rows may be cut. A part of the features needs the same part of a. */
static int snake_rule(const trainctl_call* call, char* rule, size_t size) {
  const size_t rows = (size_t)call->inputs[0].shape.ndim - 1;
  if (size < 2 * rows + 8) return trainctl_fail(call, "too many dims");
  memcpy(rule, "abcdefghijklm", rows);
  memcpy(rule + rows, "n,n->", 5);
  memcpy(rule + rows + 5, "abcdefghijklm", rows);
  memcpy(rule + 2 * rows + 5, "n", 2);
  return 0;
}

static int snake_forward(const trainctl_call* call) {
  const float* x = (const float*)call->inputs[0].data;
  const float* a = (const float*)call->inputs[1].data;
  float* y = (float*)call->outputs[0].data;
  const float power = (float)call->attributes[0].number;
  const int64_t features = last_dim(&call->inputs[0].shape), size = trainctl_size(&call->inputs[0].shape);
  for (int64_t i = 0; i < size; ++i) {
    const float of_feature = a[i % features], s = sinf(of_feature * x[i]);
    y[i] = x[i] + power * s * s / of_feature;
  }
  return 0;
}

/* dx = dy (1 + power sin(2 a x)). da[n] = the sum over rows of dy power (x sin(2 a x) / a - sin(a x)^2 / a^2): ranks that
 * share the rows have terms of this sum, which the engine adds up. */
static int snake_backward(const trainctl_call* call) {
  const float* dy = (const float*)call->output_grads[0].data;
  const float* x = (const float*)call->inputs[0].data;
  const float* a = (const float*)call->inputs[1].data;
  float* dx = (float*)call->input_grads[0].data; /* NULL: not wanted */
  float* da = (float*)call->input_grads[1].data;
  const float power = (float)call->attributes[0].number;
  const int64_t features = last_dim(&call->inputs[0].shape), size = trainctl_size(&call->inputs[0].shape);
  if (da != NULL && !call->input_grads[1].adds) memset(da, 0, (size_t)features * sizeof(float));
  for (int64_t i = 0; i < size; ++i) {
    const float of_feature = a[i % features], s = sinf(of_feature * x[i]), twice = sinf(2 * of_feature * x[i]);
    if (da != NULL) da[i % features] += dy[i] * power * (x[i] * twice / of_feature - s * s / (of_feature * of_feature));
    if (dx != NULL) dx[i] = (call->input_grads[0].adds ? dx[i] : 0) + dy[i] * (1 + power * twice);
  }
  return 0;
}

static int snake_cost(const trainctl_call* call, int is_backward, trainctl_cost* cost) {
  const double size = (double)trainctl_size(&call->inputs[0].shape);
  cost->flops = size * (is_backward ? 40 : 20);
  cost->bytes = size * sizeof(float) * (is_backward ? 3 : 2);
  return 0;
}

/* A field of the layer: {type: snake, power: 0.5}. */
static const trainctl_attribute snake_attributes[] = {{.name = "power",
                                                       .doc = "Factor of the periodic part.",
                                                       .kind = TRAINCTL_NUMBER,
                                                       .fallback = {.number = 1},
                                                       .has_range = 1,
                                                       .least = 0,
                                                       .most = 10}};
static const trainctl_input snake_inputs[] = {{.name = "x"}};
static const trainctl_parameter snake_parameters[] = {{.name = "a", .init = TRAINCTL_CONSTANT, .value = 1}};
static const trainctl_shape snake_shapes[] = {{.ndim = 2, .dims = {24, 12}}, {.ndim = 3, .dims = {4, 12, 24}}};
static const trainctl_example snake_examples[] = {{.inputs = &snake_shapes[0]}, {.inputs = &snake_shapes[1]}};

/* row_dot. n is in no output, so ranks that share it have terms of a sum. */

static int row_dot_output_shapes(const trainctl_call* call, trainctl_shape* outputs) {
  const trainctl_shape *x = &call->inputs[0].shape, *z = &call->inputs[1].shape;
  if (x->ndim != 2 || z->ndim != 2 || x->dims[0] != z->dims[0] || x->dims[1] != z->dims[1])
    return trainctl_fail(call, "expected two matrices of the same shape");
  outputs[0].ndim = 2;
  outputs[0].dims[1] = 1;
  return 0;
}

static int row_dot_forward(const trainctl_call* call) {
  const float *x = (const float*)call->inputs[0].data, *z = (const float*)call->inputs[1].data;
  float* y = (float*)call->outputs[0].data;
  const int64_t rows = call->inputs[0].shape.dims[0], columns = call->inputs[0].shape.dims[1];
  for (int64_t r = 0; r < rows; ++r) {
    double sum = 0;
    for (int64_t n = 0; n < columns; ++n) sum += (double)x[r * columns + n] * z[r * columns + n];
    y[r] = (float)sum;
  }
  return 0;
}

static int row_dot_backward(const trainctl_call* call) {
  const float* dy = (const float*)call->output_grads[0].data;
  const int64_t rows = call->inputs[0].shape.dims[0], columns = call->inputs[0].shape.dims[1];
  for (int i = 0; i < 2; ++i) {
    const float* other = (const float*)call->inputs[1 - i].data;
    float* dx = (float*)call->input_grads[i].data;
    for (int64_t k = 0; dx != NULL && k < rows * columns; ++k) dx[k] = dy[k / columns] * other[k];
  }
  return 0;
}

static const trainctl_input row_dot_inputs[] = {{.name = "x"}, {.name = "z"}};
static const trainctl_shape row_dot_shapes[] = {{.ndim = 2, .dims = {12, 24}}, {.ndim = 2, .dims = {12, 24}}};
static const trainctl_example row_dot_examples[] = {{.inputs = row_dot_shapes}};

static const trainctl_op ops[] = {
    {
        .name = "snake",
        .doc = "x + power * sin(a x)^2 / a, with a trained a for each feature.",
        .attributes = snake_attributes,
        .num_attributes = 1,
        .inputs = snake_inputs,
        .num_inputs = 1,
        .parameters = snake_parameters,
        .num_parameters = 1,
        .num_outputs = 1,
        .flags = TRAINCTL_ADDS_GRADIENTS,
        .make_rule = snake_rule,
        .parameter_shapes = snake_parameter_shapes,
        .forward = snake_forward,
        .backward = snake_backward,
        .backward_reads_inputs = 1 << 0 | 1 << 1, /* x and a */
#ifdef SNAKE_CUDA
        .forward_cuda = snake_forward_cuda,
        .backward_cuda = snake_backward_cuda,
#endif
        .cost = snake_cost,
        .examples = snake_examples,
        .num_examples = 2,
    },
    {
        .name = "row_dot",
        .doc = "The dot product of each row of two matrices.",
        .inputs = row_dot_inputs,
        .num_inputs = 2,
        .num_outputs = 1,
        .rule = "rn,rn->r()",
        .output_shapes = row_dot_output_shapes,
        .forward = row_dot_forward,
        .backward = row_dot_backward,
        .backward_reads_inputs = 1 << 0 | 1 << 1,
        .examples = row_dot_examples,
        .num_examples = 1,
    },
};

static const trainctl_plugin_info info = {
    .abi = TRAINCTL_PLUGIN_ABI, .op_size = sizeof(trainctl_op), .ops = ops, .num_ops = 2};

TRAINCTL_EXPORT const trainctl_plugin_info* trainctl_plugin(void) { return &info; }
