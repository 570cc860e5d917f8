"""A clock that only moves when something sleeps."""


class FakeClock:
    def __init__(self):
        self.time_s = 0.0
        self.spun_s = 0.0

    def now(self):
        return self.time_s

    def sleep(self, seconds):
        self.time_s += seconds

    def sleep_until(self, deadline_s):
        self.time_s = max(self.time_s, deadline_s)

    def spin_until(self, deadline_s):
        self.spun_s += max(0.0, deadline_s - self.time_s)
        self.time_s = max(self.time_s, deadline_s)

    def launch(self, seconds):
        self.spun_s += seconds
        self.time_s += seconds
