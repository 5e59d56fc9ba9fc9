"""The code that runs under Locust: the only package that imports Locust and gevent, which patch the whole process."""
