/* The interface of trainctl's plugins: layer types in a shared library that a job names in `plugins`. Plain C, for
 * C and C++. docs/plugins.md explains it with an example, and `trainctl check --plugin FILE` tests a plugin.
 *
 * A plugin exports one function, trainctl_plugin. It returns a table of ops. Each op is a layer type of job files: its
 * attributes are the layer's fields, its parameters are trained. The table and all that it points to must stay valid
 * until the process ends.
 *
 * Shapes count elements. Tensors are contiguous and row-major. Unless stated otherwise a function returns 0, or another
 * number after it has written a message into call->error:
 *
 *     return trainctl_fail(call, "expected an even number of columns");
 *
 * A C++ function may throw std::exception instead. Several threads may call a function at the same time.
 */
#ifndef TRAINCTL_PLUGIN_H
#define TRAINCTL_PLUGIN_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Number of this interface. A plugin is refused if it was compiled with another one. */
#define TRAINCTL_PLUGIN_ABI 1
/* The most dims of a tensor, and the most inputs and parameters, or outputs, of an op. */
#define TRAINCTL_MAX_DIMS 16
#define TRAINCTL_MAX_OPERANDS 8

/* Types of elements. */
enum { TRAINCTL_F32 = 0, TRAINCTL_BF16 = 1, TRAINCTL_I32 = 2 };

typedef struct trainctl_shape {
  int32_t dtype;
  int32_t ndim; /* 0 to TRAINCTL_MAX_DIMS */
  int64_t dims[TRAINCTL_MAX_DIMS];
} trainctl_shape;

/* One operand of a kernel: the part of the tensor that this rank stores. */
typedef struct trainctl_tensor {
  void* data;                        /* NULL: not available, or not wanted */
  trainctl_shape shape;              /* shape of this part */
  int64_t whole[TRAINCTL_MAX_DIMS];  /* shape of the whole tensor over all ranks */
  int64_t offset[TRAINCTL_MAX_DIMS]; /* position of this part's first element in the whole tensor */
  int32_t adds;                      /* of a gradient: add to the contents of data instead of replacing them */
} trainctl_tensor;

typedef union trainctl_value {
  int32_t flag; /* 0 or 1 */
  int64_t integer;
  double number;
  const char* text;
} trainctl_value;

/* The arguments of every function. Pointers are valid until the function returns. */
typedef struct trainctl_call {
  const trainctl_value* attributes; /* in the order of trainctl_op.attributes */
  /* The op's inputs, then its parameters. A backward kernel has those in backward_reads_inputs; the others have no data
   * and ndim 0. While shapes are inferred, all data is NULL, and parameter_shapes sees the inputs alone. */
  trainctl_tensor* inputs;
  /* The op's outputs. A forward kernel writes each element of each. A backward kernel reads those in
   * backward_reads_outputs. */
  trainctl_tensor* outputs;
  /* Of a backward kernel: the gradients of the outputs; data is NULL where an output has none (it counts as 0). */
  const trainctl_tensor* output_grads;
  /* Of a backward kernel: the gradients of inputs, then parameters. It writes each element of those whose data is
   * not NULL. */
  trainctl_tensor* input_grads;
  int32_t num_inputs; /* inputs and parameters; while parameter_shapes runs, inputs alone */
  int32_t num_outputs;
  int32_t threads;     /* threads that a CPU kernel may use */
  int32_t micro_batch; /* number of the micro-batch in the step, from 0 */
  uint64_t seed;       /* the job's */
  uint64_t step;       /* of CPU kernels: number of the step, from 0 */
  char* error;         /* for a message of at most error_size - 1 bytes */
  size_t error_size;
} trainctl_call;

/* Writes the message; returns 1. */
static inline int trainctl_fail(const trainctl_call* call, const char* message) {
  if (call->error_size > 0) {
    strncpy(call->error, message, call->error_size - 1);
    call->error[call->error_size - 1] = '\0';
  }
  return 1;
}

/* Number of elements. */
static inline int64_t trainctl_size(const trainctl_shape* shape) {
  int64_t size = 1;
  for (int32_t d = 0; d < shape->ndim; ++d) size *= shape->dims[d];
  return size;
}

/* A field of the layer. Texts: "number" and so on are the kinds of values in trainctl_value. */
enum { TRAINCTL_FLAG = 0, TRAINCTL_INTEGER = 1, TRAINCTL_NUMBER = 2, TRAINCTL_TEXT = 3 };

typedef struct trainctl_attribute {
  const char* name; /* lower-case letters, digits and _ */
  const char* doc;  /* one sentence */
  int32_t kind;
  int32_t required;        /* 1: it has no default */
  trainctl_value fallback; /* the default */
  int32_t has_range;       /* 1: integers and numbers are from least to most */
  double least, most;
  const char* choices; /* of a text: "a|b|c"; NULL: any text */
} trainctl_attribute;

enum { TRAINCTL_FLOATS = 0, TRAINCTL_INDICES = 1 };

typedef struct trainctl_input {
  const char* name;
  int32_t kind;        /* TRAINCTL_FLOATS: f32 or bf16; TRAINCTL_INDICES: i32 */
  int32_t no_gradient; /* 1: the outputs do not change with it gradually, so it has no gradient */
} trainctl_input;

enum { TRAINCTL_CONSTANT = 0, TRAINCTL_UNIFORM = 1, TRAINCTL_NORMAL = 2 };

typedef struct trainctl_parameter {
  const char* name; /* the tensor is LAYER.name */
  /* Initial values. CONSTANT: value. UNIFORM: from -value to value. NORMAL: with standard deviation `value`. */
  int32_t init;
  double value;
} trainctl_parameter;

typedef struct trainctl_cost {
  double flops; /* operations of one call */
  double bytes; /* bytes read and written, each counted once */
} trainctl_cost;

/* A representative call, which `trainctl check --plugin` cuts and runs. Sizes that are multiples of 12 can be cut 2, 3
 * and 4 ways. */
typedef struct trainctl_example {
  const trainctl_shape* inputs;     /* one per input, without parameters; dtype is ignored */
  const trainctl_value* attributes; /* one per attribute; NULL: the defaults */
  double least, most;               /* range of the values of the inputs; both 0: -1 to 1 */
  int64_t indices_below;            /* inputs with indices have values from 0 to below this */
} trainctl_example;

/* Bits of trainctl_op.flags. */
enum {
  /* Kernels also support bf16: activations and their gradients are then bf16, and gradients of parameters are f32 or
   * bf16, as shape.dtype states. Only GPUs compute in bf16. */
  TRAINCTL_SUPPORTS_BF16 = 1,
  /* The backward kernel supports trainctl_tensor.adds. Without it the engine adds gradients in a step of its own. */
  TRAINCTL_ADDS_GRADIENTS = 2,
  /* Output 0 may be stored in the memory of input 0, which has the same shape. */
  TRAINCTL_IN_PLACE = 4
};

typedef struct trainctl_op {
  const char* name; /* the `type` of a layer: lower-case letters, digits and _ */
  const char* doc;  /* one sentence */
  const trainctl_attribute* attributes;
  int32_t num_attributes;
  const trainctl_input* inputs;
  int32_t num_inputs; /* at least 1 */
  const trainctl_parameter* parameters;
  int32_t num_parameters;
  int32_t num_outputs; /* at least 1 */
  uint32_t flags;

  /* The sharding rule: letters for the dims of inputs, parameters -> outputs. "mk,kn->mn" is a matrix product.
   *
   *   A letter is an index that ranks may share. With dims of equal letters, ranks hold equal parts of them.
   *   A letter that an output has is cut in parallel: the kernel computes that part of the output.
   *   A letter that no output has is summed over: the ranks' outputs are terms of a sum, which the engine computes.
   *   "(ab)" is a dim of two indices, of which only the first is cut. "()" is a dim of size 1.
   *
   * A gradient has the letters of its tensor. It is a sum over each letter that it lacks and that an operand of the
   * backward kernel has. make_rule, if not NULL, writes the rule for these shapes and attributes in place of `rule`. */
  const char* rule;
  int (*make_rule)(const trainctl_call* call, char* rule, size_t size);
  const char* uncuttable;     /* letters that must be whole on each rank: "d"; NULL: none */
  const char* why_uncuttable; /* "a row is sorted as a whole" */

  /* Fill in shapes from those of the inputs. In output_shapes, call->inputs includes parameters, and each shape starts
   * as that of input 0. A parameter is f32 or bf16 as the engine chooses; its dtype is not to be set. */
  int (*parameter_shapes)(const trainctl_call* call, trainctl_shape* parameters); /* NULL: there are none */
  int (*output_shapes)(const trainctl_call* call, trainctl_shape* outputs);       /* NULL: all like input 0 */

  /* CPU kernels: each element of each result is written, and no other memory. Results depend only on `call`. */
  int (*forward)(const trainctl_call* call);
  int (*backward)(const trainctl_call* call); /* NULL: no gradient flows through the op */
  uint32_t backward_reads_inputs;             /* bit i: input or parameter i */
  uint32_t backward_reads_outputs;            /* bit i: output i */

  /* CUDA kernels, enqueued on `stream`, a cudaStream_t. All data is device memory. They must not wait for the device,
   * nor allocate, because steps are captured in graphs. NULL: the op runs on CPUs only. */
  int (*forward_cuda)(const trainctl_call* call, void* stream);
  int (*backward_cuda)(const trainctl_call* call, void* stream);

  /* The work of a call on these shapes; NULL: each operand passes through memory once. */
  int (*cost)(const trainctl_call* call, int is_backward, trainctl_cost* cost);

  const trainctl_example* examples; /* at least one */
  int32_t num_examples;
} trainctl_op;

typedef struct trainctl_plugin_info {
  int32_t abi;     /* TRAINCTL_PLUGIN_ABI */
  int32_t op_size; /* sizeof(trainctl_op) */
  const trainctl_op* ops;
  int32_t num_ops;
} trainctl_plugin_info;

/* Defined by the plugin:
 *
 *     TRAINCTL_EXPORT const trainctl_plugin_info* trainctl_plugin(void) { return &info; }
 */
#ifdef __cplusplus
#define TRAINCTL_EXPORT extern "C" __attribute__((visibility("default")))
#else
#define TRAINCTL_EXPORT __attribute__((visibility("default")))
#endif
__attribute__((visibility("default"))) const trainctl_plugin_info* trainctl_plugin(void);

#ifdef __cplusplus
}
#endif

#endif /* TRAINCTL_PLUGIN_H */
