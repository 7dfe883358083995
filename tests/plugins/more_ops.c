/* Ops with what the example of docs/plugins.md lacks: indices, parts of a parameter, several outputs, work in place, and
 * attributes of each kind. */
#include <math.h>
#include <string.h>

#include "trainctl_plugin.h"

/* rows_of: y[b, d] = table[id[b], d]. A rank with a part of the table gives 0 for the rows of others. */
static int rows_of_parameters(const trainctl_call* call, trainctl_shape* parameters) {
  parameters[0].ndim = 2;
  parameters[0].dims[0] = call->attributes[0].integer;
  parameters[0].dims[1] = 12;
  return 0;
}

static int rows_of_outputs(const trainctl_call* call, trainctl_shape* outputs) {
  outputs[0].dtype = call->inputs[1].shape.dtype;
  outputs[0].ndim = 2;
  outputs[0].dims[0] = call->inputs[0].shape.dims[0];
  outputs[0].dims[1] = call->inputs[1].shape.dims[1];
  return 0;
}

static int rows_of_forward(const trainctl_call* call) {
  const int32_t* id = (const int32_t*)call->inputs[0].data;
  const float* table = (const float*)call->inputs[1].data;
  float* y = (float*)call->outputs[0].data;
  const int64_t width = call->outputs[0].shape.dims[1], rows = call->inputs[1].shape.dims[0];
  for (int64_t b = 0; b < call->outputs[0].shape.dims[0]; ++b)
    for (int64_t d = 0; d < width; ++d) {
      const int64_t row = id[b] - call->inputs[1].offset[0];
      y[b * width + d] = row >= 0 && row < rows ? table[row * width + d] : 0;
    }
  return 0;
}

static int rows_of_backward(const trainctl_call* call) {
  const int32_t* id = (const int32_t*)call->inputs[0].data;
  const float* dy = (const float*)call->output_grads[0].data;
  const trainctl_tensor* grad = &call->input_grads[1];
  float* table = (float*)grad->data;
  const int64_t width = grad->shape.dims[1], rows = grad->shape.dims[0];
  if (!grad->adds) memset(table, 0, (size_t)(rows * width) * sizeof(float));
  for (int64_t b = 0; b < call->output_grads[0].shape.dims[0]; ++b) {
    const int64_t row = id[b] - grad->offset[0];
    for (int64_t d = 0; d < width && row >= 0 && row < rows; ++d) table[row * width + d] += dy[b * width + d];
  }
  return 0;
}

/* halves: both outputs read each element; the mode "sin" or "cos" chooses the function of the second. */
static int halves_forward(const trainctl_call* call) {
  const float* x = (const float*)call->inputs[0].data;
  float *a = (float*)call->outputs[0].data, *b = (float*)call->outputs[1].data;
  const int is_sine = strcmp(call->attributes[0].text, "sin") == 0, doubled = call->attributes[1].flag;
  for (int64_t i = 0; i < trainctl_size(&call->inputs[0].shape); ++i) {
    a[i] = doubled ? 2 * x[i] : x[i];
    b[i] = is_sine ? sinf(x[i]) : cosf(x[i]);
  }
  return 0;
}

/* An output that nothing reads has no gradient. */
static int halves_backward(const trainctl_call* call) {
  const float* x = (const float*)call->inputs[0].data;
  const float *da = (const float*)call->output_grads[0].data, *db = (const float*)call->output_grads[1].data;
  float* dx = (float*)call->input_grads[0].data;
  const int is_sine = strcmp(call->attributes[0].text, "sin") == 0, doubled = call->attributes[1].flag;
  for (int64_t i = 0; i < trainctl_size(&call->inputs[0].shape); ++i) {
    dx[i] = da == NULL ? 0 : (doubled ? 2 : 1) * da[i];
    if (db != NULL) dx[i] += (is_sine ? cosf(x[i]) : -sinf(x[i])) * db[i];
  }
  return 0;
}

/* row_softmax: works in place; a row stays whole. */
static int row_softmax_forward(const trainctl_call* call) {
  const float* x = (const float*)call->inputs[0].data;
  float* y = (float*)call->outputs[0].data;
  const int64_t width = call->inputs[0].shape.dims[1];
  for (int64_t r = 0; r < call->inputs[0].shape.dims[0]; ++r) {
    double sum = 0;
    for (int64_t n = 0; n < width; ++n) sum += exp((double)x[r * width + n]);
    for (int64_t n = 0; n < width; ++n) y[r * width + n] = (float)(exp((double)x[r * width + n]) / sum);
  }
  return 0;
}

static int row_softmax_backward(const trainctl_call* call) {
  const float *y = (const float*)call->outputs[0].data, *dy = (const float*)call->output_grads[0].data;
  float* dx = (float*)call->input_grads[0].data;
  const int64_t width = call->outputs[0].shape.dims[1];
  for (int64_t r = 0; r < call->outputs[0].shape.dims[0]; ++r) {
    double dot = 0;
    for (int64_t n = 0; n < width; ++n) dot += (double)y[r * width + n] * dy[r * width + n];
    for (int64_t n = 0; n < width; ++n) dx[r * width + n] = (float)(y[r * width + n] * (dy[r * width + n] - dot));
  }
  return 0;
}

static const trainctl_attribute rows_of_attributes[] = {
    {.name = "rows", .doc = "Rows of the table.", .kind = TRAINCTL_INTEGER, .required = 1, .has_range = 1, .least = 1, .most = 1e9}};
static const trainctl_value rows_of_values[] = {{.integer = 24}};
static const trainctl_input rows_of_inputs[] = {{.name = "id", .kind = TRAINCTL_INDICES}};
static const trainctl_parameter rows_of_table[] = {{.name = "table", .init = TRAINCTL_NORMAL, .value = 0.5}};
static const trainctl_shape rows_of_shape[] = {{.ndim = 1, .dims = {36}}};
static const trainctl_example rows_of_example[] = {{.inputs = rows_of_shape, .attributes = rows_of_values, .indices_below = 24}};
static const trainctl_attribute halves_attributes[] = {
    {.name = "mode", .doc = "Function.", .kind = TRAINCTL_TEXT, .fallback = {.text = "sin"}, .choices = "sin|cos"},
    {.name = "doubled", .doc = "Doubles the first.", .kind = TRAINCTL_FLAG, .fallback = {.flag = 1}}};
static const trainctl_value halves_values[] = {{.text = "cos"}, {.flag = 0}};
static const trainctl_input x_input[] = {{.name = "x"}};
static const trainctl_shape matrix[] = {{.ndim = 2, .dims = {12, 24}}};
static const trainctl_example halves_examples[] = {{.inputs = matrix}, {.inputs = matrix, .attributes = halves_values}};

static const trainctl_op ops[] = {
    {.name = "rows_of", .doc = "Rows of a table.", .attributes = rows_of_attributes, .num_attributes = 1, .inputs = rows_of_inputs,
     .num_inputs = 1, .parameters = rows_of_table, .num_parameters = 1, .num_outputs = 1, .flags = TRAINCTL_ADDS_GRADIENTS,
     .rule = "b,vd->bd", .parameter_shapes = rows_of_parameters, .output_shapes = rows_of_outputs, .forward = rows_of_forward,
     .backward = rows_of_backward, .backward_reads_inputs = 1, .examples = rows_of_example, .num_examples = 1},
    {.name = "halves", .doc = "Two functions.", .attributes = halves_attributes, .num_attributes = 2, .inputs = x_input, .num_inputs = 1,
     .num_outputs = 2, .rule = "ab->ab,ab", .forward = halves_forward, .backward = halves_backward, .backward_reads_inputs = 1,
     .examples = halves_examples, .num_examples = 2},
    {.name = "row_softmax", .doc = "Softmax of each row.", .inputs = x_input, .num_inputs = 1, .num_outputs = 1, .flags = TRAINCTL_IN_PLACE,
     .rule = "rn->rn", .uncuttable = "n", .why_uncuttable = "a row is divided by its sum", .forward = row_softmax_forward,
     .backward = row_softmax_backward, .backward_reads_outputs = 1, .examples = halves_examples, .num_examples = 1}};

static const trainctl_plugin_info info = {.abi = TRAINCTL_PLUGIN_ABI, .op_size = sizeof(trainctl_op), .ops = ops, .num_ops = 3};

TRAINCTL_EXPORT const trainctl_plugin_info* trainctl_plugin(void) { return &info; }
