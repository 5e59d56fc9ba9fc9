/* Stands in for a Python model of Triton 25.02 or later: a backend whose responses have the parameter "sequence_id".

   The Python models of Triton 2.51 can't set parameters. What is declared here is of tritonbackend.h and tritonserver.h. */

#include <stdint.h>

typedef void Error;
typedef void Request;
typedef void Response;
typedef void Output;

Error *TRITONBACKEND_ResponseNew(Response **response, Request *request);
Error *TRITONBACKEND_ResponseOutput(Response *, Output **, const char *name, int type, const int64_t *shape, uint32_t dims);
Error *TRITONBACKEND_OutputBuffer(Output *, void **buffer, uint64_t bytes, int *memory_type, int64_t *memory_id);
Error *TRITONBACKEND_ResponseSetIntParameter(Response *, const char *name, int64_t value);
Error *TRITONBACKEND_ResponseSend(Response *, uint32_t flags, Error *error);
Error *TRITONBACKEND_RequestRelease(Request *, uint32_t flags);

enum { TYPE_INT32 = 8, FINAL = 1, RELEASE_ALL = 1 };

static int64_t names = INT64_C(1) << 61;

Error *TRITONBACKEND_ModelInstanceExecute(void *instance, Request **requests, uint32_t count) {
  (void)instance;
  for (uint32_t number = 0; number < count; ++number) {
    Response *response = 0;
    Output *output = 0;
    void *buffer = 0;
    int memory_type = 0;
    int64_t memory_id = 0;
    const int64_t shape[2] = {1, 1};
    TRITONBACKEND_ResponseNew(&response, requests[number]);
    TRITONBACKEND_ResponseOutput(response, &output, "PREPARED", TYPE_INT32, shape, 2);
    TRITONBACKEND_OutputBuffer(output, &buffer, sizeof(int32_t), &memory_type, &memory_id);
    *(int32_t *)buffer = 0;
    TRITONBACKEND_ResponseSetIntParameter(response, "sequence_id", names++);
    TRITONBACKEND_ResponseSend(response, FINAL, 0);
    TRITONBACKEND_RequestRelease(requests[number], RELEASE_ALL);
  }
  return 0;
}
