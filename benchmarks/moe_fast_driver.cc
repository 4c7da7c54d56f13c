// Times the planner of FAST (github.com/MangoBoost/FAST, amd/src) on byte matrices. FAST is not part of flowccl.
//
// Build it for S hosts of 8 GPUs, after setting MAX_SERVER_NUM and the numbers derived from it in alltoall_define.h:
//   g++ -O3 -DNOLOG -std=c++17 -include sys/types.h -include cstdint -include cstring -include cstdlib \
//       -I STUB -I SRC/include moe_fast_driver.cc SRC/fast_alltoall/*.cc -o fastS
// where STUB/hip/hip_runtime.h is an empty file. Then `fastS S matrices.bin` prints the median in milliseconds; the
// file has matrices of 64-bit integers, one after the other. Allocation and clearing of memory is not counted.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <vector>

#include "fast_alltoall/alltoall_global_scheduler.h"

int main(int argc, char **argv) {
  if (argc != 3) return 2;
  unsigned hosts = atoi(argv[1]), gpus = 8, size = hosts * gpus;
  FILE *file = fopen(argv[2], "rb");
  if (!file) return 2;
  std::vector<uint64_t> matrix(size * size);
  std::vector<double> times;
  while (fread(matrix.data(), 8, size * size, file) == size * size) {
    GlobalScheduler *scheduler = (GlobalScheduler *)calloc(1, sizeof(GlobalScheduler));
    init_global_scheduler(scheduler, hosts, gpus, matrix.data(), 0);
    auto begin = std::chrono::steady_clock::now();
    run_scheduler(scheduler);
    auto end = std::chrono::steady_clock::now();
    times.push_back(std::chrono::duration<double, std::milli>(end - begin).count());
    free_global_scheduler(scheduler);
    free(scheduler);
  }
  if (times.empty()) return 2;
  std::sort(times.begin(), times.end());
  printf("%.4f\n", times[times.size() / 2]);
}
