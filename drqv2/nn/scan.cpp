// The recurrence of scan.py: x_t = delta_t + decay_t x_{t+1}, from the last step back.
//
// `row` and `step` are distances in memory: of rows, and of the steps within one. Eight rows at a time, since within one
// each step waits for the one after it.
#include <algorithm>
#include <cstdint>

template <typename T>
void scan(const T* deltas, const T* decays, T* out, int64_t rows, int64_t steps, int64_t row, int64_t step) {
    constexpr int64_t kBlock = 8;
    for (int64_t begin = 0; begin < rows; begin += kBlock) {
        const int64_t width = std::min(kBlock, rows - begin);
        T x[kBlock] = {};
        for (int64_t t = steps - 1; t >= 0; --t)
            for (int64_t i = 0; i < width; ++i) {
                const int64_t at = (begin + i) * row + t * step;
                x[i] = deltas[at] + (t + 1 < steps ? decays[at] * x[i] : T(0));
                out[at] = x[i];
            }
    }
}

extern "C" void scan_float(const float* a, const float* b, float* out, int64_t n, int64_t t, int64_t r, int64_t s) {
    scan(a, b, out, n, t, r, s);
}

extern "C" void scan_double(const double* a, const double* b, double* out, int64_t n, int64_t t, int64_t r, int64_t s) {
    scan(a, b, out, n, t, r, s);
}
