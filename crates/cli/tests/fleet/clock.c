/* Has the wall clock of a program be BERTH_TEST_AHEAD seconds ahead, by LD_PRELOAD. Its other clocks stay as they are. */
#include <stdlib.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

int clock_gettime(clockid_t clock, struct timespec *now) {
  int failed = (int)syscall(SYS_clock_gettime, clock, now);
  const char *ahead = getenv("BERTH_TEST_AHEAD");
  if (!failed && clock == CLOCK_REALTIME && ahead)
    now->tv_sec += atol(ahead);
  return failed;
}
