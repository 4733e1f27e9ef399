"""The verb `bits`: is it the same sum, bit for bit?"""
